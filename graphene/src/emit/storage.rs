//! Where tensors lie in shared memory: one after the other, in the order of their allocation.

use super::{Names, Prelude, Uses, refuse};
use crate::{Error, Kernel, Memory, Result, Scalar, Tensor, TensorId, error::AtMost};

pub(crate) struct Storage {
    places: Vec<(TensorId, i64)>,
    align: i64,
    pub(super) bytes: i64,
}

impl Storage {
    /// Places a kernel's tensors in shared memory. Fails for a size that is not a constant, and more than a block may have.
    pub(crate) fn of(kernel: &Kernel) -> Result<Storage> {
        let limit = AtMost(kernel.arch.shared_memory());
        let mut storage = Storage { places: Vec::new(), align: 16, bytes: 0 };
        for id in kernel.allocations() {
            let tensor = kernel.tensor(id);
            if tensor.memory != Memory::Shared {
                continue;
            }
            let Some(size) = tensor.view.cosize() else {
                let name = kernel.tensor_name(id);
                return refuse(format!("the size of %{name} in shared memory is not a constant"));
            };
            let align = alignment(tensor);
            let start = (storage.bytes + align - 1) / align * align;
            storage.places.push((id, start));
            storage.align = storage.align.max(align);
            storage.bytes =
                start.checked_add(size * tensor.scalar.bytes()).ok_or(Error::Overflow)?;
            limit.check("bytes of shared memory a block", storage.bytes)?;
        }
        Ok(storage)
    }

    /// What the kernel's body begins with: the tensors that it names. The compiler places the array
    /// as it is aligned, in every block alike, so that blocks of a cluster share offsets.
    pub(super) fn lines(&self, kernel: &Kernel, names: &Names, uses: &mut Uses) -> Vec<String> {
        let mut lines = Vec::new();
        for &(id, start) in &self.places {
            let Ok(name) = names.tensor(id) else { continue };
            let (pointer, address) = (uses.elements.contains(&id), uses.addresses.contains(&id));
            if !pointer && !address {
                continue;
            }
            let tensor = kernel.tensor(id);
            lines.push(format!("// %{}:{tensor}", kernel.tensor_name(id)));
            let scalar = tensor.scalar.c_name();
            if pointer {
                uses.prelude.extend(Prelude::of(tensor.scalar));
                lines.push(format!("{scalar} *const {name} = ({scalar} *)&shared[{start}];"));
            }
            if let (true, Ok(address)) = (address, names.address(id)) {
                uses.prelude.insert(Prelude::SharedAddress);
                let of = Prelude::SharedAddress.name();
                lines.push(format!("const unsigned {address} = {of}(&shared[{start}]);"));
            }
        }
        if !lines.is_empty() {
            let align = format!("__align__({})", self.align);
            lines.insert(0, format!("extern __shared__ {align} unsigned char shared[];"));
        }
        lines
    }
}

/// What a tensor's address must be a multiple of: tensor copies ask for 128 bytes, swizzles count from multiples of 1024.
fn alignment(tensor: &Tensor) -> i64 {
    match (tensor.swizzle, tensor.scalar) {
        (Some(_), _) => 1024,
        (None, Scalar::Mbar) => 8,
        (None, _) => 128,
    }
}
