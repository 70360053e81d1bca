//! .
/// .
pub fn parse(_: &str) -> crate::Result<crate::kernel::Kernel> {
    Err(crate::Error::Empty)
}
