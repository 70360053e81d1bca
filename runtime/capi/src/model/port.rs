//! What a model takes and gives, as C has it.

use crate::dtype::DType;
use crate::raw::needed;
use crate::status::{Failure, c_text};
use graphene_runtime as rt;
use std::ffi::{CString, c_char};
use std::mem::MaybeUninit;

/// An input or an output of a model.
#[repr(C)]
pub struct Port {
    /// Its name.
    pub name: *const c_char,
    /// The type of its elements.
    pub dtype: DType,
    /// Dimensions of its shape.
    pub rank: usize,
    /// Elements along each dimension, -1 where requests decide.
    pub shape: *const i64,
    /// The same as text: a number, the name of a dim, or an expression such as "2*sequence".
    pub dims: *const *const c_char,
}

/// Ports with what they point at.
pub(crate) struct Ports {
    ports: Vec<Port>,
    _owned: Vec<Owned>,
}

struct Owned {
    name: CString,
    shape: Vec<i64>,
    dims: Vec<*const c_char>,
    /// What `dims` points at.
    _texts: Vec<CString>,
}

impl Ports {
    pub(crate) fn new(ports: &[rt::Port]) -> Self {
        let owned: Vec<Owned> = ports.iter().map(Owned::new).collect();
        let port = |(port, owned): (&rt::Port, &Owned)| Port {
            name: owned.name.as_ptr(),
            dtype: port.dtype().into(),
            rank: owned.shape.len(),
            shape: owned.shape.as_ptr(),
            dims: owned.dims.as_ptr(),
        };
        Self { ports: ports.iter().zip(&owned).map(port).collect(), _owned: owned }
    }

    pub(crate) fn give(
        &self,
        ports: Option<&mut MaybeUninit<*const Port>>,
        count: Option<&mut MaybeUninit<usize>>,
    ) -> Result<(), Failure> {
        let (ports, count) = (needed(ports, "ports")?, needed(count, "count")?);
        ports.write(self.ports.as_ptr());
        count.write(self.ports.len());
        Ok(())
    }
}

impl Owned {
    fn new(port: &rt::Port) -> Self {
        let texts: Vec<CString> = port.dims().iter().map(|dim| c_text(&dim.to_string())).collect();
        let dims = texts.iter().map(|text| text.as_ptr()).collect();
        let shape = port.dims().iter().map(|dim| dim.known().unwrap_or(-1)).collect();
        Self { name: c_text(port.name()), shape, dims, _texts: texts }
    }
}
