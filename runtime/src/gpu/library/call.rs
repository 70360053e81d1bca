//! Calls of libraries with their weights and buffers.

use super::{Recurrence, Routine, Rows, scalar};
use crate::device::cublaslt::{self, BoundGemm, Gemm, Operands};
use crate::device::cudnn::{
    self, Attention, Axis, ConvOperands, Convolution, Sizes, States, Strided,
};
use crate::device::{Bound, Buffer, Device, Library, Stream};
use crate::error::{Error, Result};
use crate::gpu::host::HostStep;
use graphene_frontend::dim::{Bindings, Dim};
use graphene_frontend::tensor::Tensor;
use graphene_fusion::kernels::{Pointer, StepOperand};
use graphene_fusion::library::{self, Conv, Heads, MatMul, Sdpa, Window};
use graphene_fusion::program::Step;
use graphene_ir::tensor::Scalar;

/// The libraries that a module's steps call.
#[derive(Default)]
pub(in crate::gpu) struct Libraries {
    matmuls: Option<cublaslt::Context>,
    layers: Option<cudnn::Context>,
}

/// A call with its weights on the device.
pub(in crate::gpu) enum Loaded {
    MatMul(Box<MatMul>),
    Conv(Box<Conv>),
    Attention(Box<Sdpa>),
    Softmax(Rows),
    Recurrent(Recurrence, Box<cudnn::Weights>),
}

/// A step that can be launched with no more arguments.
pub(in crate::gpu) enum Call {
    /// A generated kernel.
    Kernel(Box<Bound>),
    MatMul(Box<BoundGemm>),
    Conv(Box<cudnn::BoundConvolution>),
    Attention(Box<cudnn::BoundAttention>),
    Softmax(Box<cudnn::Softmax>),
    Recurrent(Box<cudnn::Recurrent>),
    /// What no kernel computes.
    Host(Box<HostStep>),
}

impl Call {
    /// Launches, behind all that was launched on its stream before, and does not wait.
    pub(in crate::gpu) fn launch(&self) -> Result<()> {
        match self {
            Self::Kernel(bound) => bound.launch(),
            Self::MatMul(matmul) => matmul.launch(),
            Self::Conv(convolution) => convolution.launch(),
            Self::Attention(attention) => attention.launch(),
            Self::Softmax(softmax) => softmax.launch(),
            Self::Recurrent(layer) => layer.launch(),
            Self::Host(step) => step.launch(),
        }
    }

    /// What became of it on the host, once the device is done; what went wrong on the device the device says.
    pub(in crate::gpu) fn outcome(&self) -> Result<()> {
        match self {
            Self::Host(step) => step.outcome(),
            Self::Kernel(_)
            | Self::MatMul(_)
            | Self::Conv(_)
            | Self::Attention(_)
            | Self::Softmax(_)
            | Self::Recurrent(_) => Ok(()),
        }
    }

    /// Whether the step falls back to the CPU.
    pub(in crate::gpu) fn is_host(&self) -> bool {
        matches!(self, Self::Host(_))
    }

    /// What computes the step: a library, the host, or a kernel by its name.
    pub(in crate::gpu) fn name(&self) -> &str {
        match self {
            Self::Kernel(bound) => bound.kernel(),
            Self::MatMul(_) => "cublaslt",
            Self::Conv(_) | Self::Attention(_) | Self::Softmax(_) | Self::Recurrent(_) => "cudnn",
            Self::Host(_) => "host",
        }
    }
}

impl Libraries {
    /// Opens those that the calls need.
    pub(in crate::gpu) fn open<'a>(
        device: &Device,
        routines: impl Iterator<Item = &'a Routine> + Clone,
    ) -> Result<Libraries> {
        let needs = |library| routines.clone().any(|routine| routine.library() == library);
        let matmuls = needs(Library::CublasLt).then(|| cublaslt::Context::new(device));
        let layers = needs(Library::Cudnn).then(cudnn::Context::new);
        Ok(Libraries { matmuls: matmuls.transpose()?, layers: layers.transpose()? })
    }

    /// How many matmuls and convolutions were timed.
    pub(in crate::gpu) fn timed(&self) -> usize {
        let matmuls = self.matmuls.as_ref().map_or(0, cublaslt::Context::timed);
        matmuls + self.layers.as_ref().map_or(0, cudnn::Context::timed)
    }

    fn matmuls(&self) -> Result<&cublaslt::Context> {
        self.matmuls.as_ref().ok_or(Error::MissingLibrary(Library::CublasLt))
    }

    fn layers(&self) -> Result<&cudnn::Context> {
        self.layers.as_ref().ok_or(Error::MissingLibrary(Library::Cudnn))
    }

    /// Brings a call's weights to the device by way of a stream; `tensors` are the program's, by buffer.
    pub(in crate::gpu) fn load(
        &self,
        stream: &Stream,
        routine: Routine,
        step: &Step,
        tensors: &[Option<Tensor>],
    ) -> Result<Loaded> {
        let recurrence = match routine {
            Routine::MatMul(matmul) => return Ok(Loaded::MatMul(matmul)),
            Routine::Conv(conv) => return Ok(Loaded::Conv(conv)),
            Routine::Attention(sdpa) => return Ok(Loaded::Attention(sdpa)),
            Routine::Softmax(rows) => return Ok(Loaded::Softmax(rows)),
            Routine::Recurrent(recurrence) => recurrence,
        };
        let none: &[u8] = &[];
        let mut weights = [none; 3];
        for (bytes, number) in weights.iter_mut().zip(recurrence.weights) {
            let Some(number) = number else { continue };
            let tensor = tensors[step.inputs[number].buffer.index()].as_ref();
            let tensor =
                tensor.ok_or(Error::Unsupported { what: "weights that are no weights" })?;
            *bytes = tensor.bytes();
        }
        let weights = self.layers()?.load(stream, recurrence.layer, weights)?;
        Ok(Loaded::Recurrent(recurrence, Box::new(weights)))
    }

    /// Gives a call its sizes and buffers on a stream; matmuls and convolutions that were not bound before are timed.
    pub(in crate::gpu) fn bind(
        &self,
        stream: &Stream,
        loaded: &Loaded,
        step: &Step,
        buffers: &[Buffer],
        bindings: &Bindings,
    ) -> Result<Call> {
        let input = |number: usize| &buffers[step.inputs[number].buffer.index()];
        let output = |number: usize| &buffers[step.outputs[number].buffer.index()];
        match loaded {
            Loaded::MatMul(matmul) => {
                let gemm = gemm(matmul, bindings)?;
                let operands = operands(matmul, &gemm, step, buffers, bindings)?;
                let bound = self.matmuls()?.bind(stream, &gemm, operands)?;
                Ok(Call::MatMul(Box::new(bound)))
            }
            Loaded::Conv(conv) => {
                let (convolution, operands) = convolution(conv, step, buffers, bindings)?;
                let bound = self.layers()?.convolution(stream, &convolution, &operands)?;
                Ok(Call::Conv(Box::new(bound)))
            }
            Loaded::Attention(sdpa) => {
                let bound = attention(sdpa, step, buffers, bindings)?;
                let bound = self.layers()?.attention(stream, &bound.0, bound.1)?;
                Ok(Call::Attention(Box::new(bound)))
            }
            Loaded::Softmax(Rows { scalar, log, rows, columns }) => {
                let shape = [size(rows, bindings)?, size(columns, bindings)?];
                let both = [input(0), output(0)];
                let bound = self.layers()?.softmax(stream, *scalar, *log, shape, both)?;
                Ok(Call::Softmax(Box::new(bound)))
            }
            Loaded::Recurrent(recurrence, weights) => {
                let Recurrence { x, steps, batch, initial, results: [y, h, c], .. } = recurrence;
                let sizes = Sizes { steps: size(steps, bindings)?, batch: size(batch, bindings)? };
                let states = States {
                    x: input(*x).clone(),
                    initial: initial.map(|number| number.map(|number| input(number).clone())),
                    y: y.map(|number| output(number).clone()),
                    last: [h, c].map(|number| number.map(|number| output(number).clone())),
                };
                let bound = self.layers()?.recurrent(stream, weights, sizes, states)?;
                Ok(Call::Recurrent(Box::new(bound)))
            }
        }
    }
}

fn size(dim: &Dim, bindings: &Bindings) -> Result<usize> {
    let size = dim.eval(bindings)?;
    usize::try_from(size).map_err(|_| Error::Negative { dim: dim.clone(), size })
}

/// A matmul with numbers.
fn gemm(matmul: &MatMul, bindings: &Bindings) -> Result<Gemm> {
    let of = |dim: &Dim| size(dim, bindings);
    let matrix = |matrix: &library::Matrix| -> Result<cublaslt::Matrix> {
        let (leading, apart) = (of(&matrix.leading)?, of(&matrix.apart)?);
        Ok(cublaslt::Matrix { leading, transposed: matrix.transposed, apart })
    };
    let none = Error::Unsupported { what: "a matmul of integers by cuBLASLt" };
    Ok(Gemm {
        batch: of(&matmul.batch)?,
        m: of(&matmul.rows)?,
        n: of(&matmul.columns)?,
        k: of(&matmul.depth)?,
        scalar: scalar(matmul.dtype).ok_or(none)?,
        a: matrix(&matmul.a)?,
        b: matrix(&matmul.b)?,
        c: matmul.addend.as_ref().map(matrix).transpose()?,
        d: matrix(&matmul.result)?,
        scale_bits: matmul.scale.to_bits(),
        bias: matmul.bias.is_some(),
        activation: matmul.activation,
        tf32: matmul.tf32,
    })
}

/// A matmul's operands from their first elements on.
fn operands(
    matmul: &MatMul,
    gemm: &Gemm,
    step: &Step,
    buffers: &[Buffer],
    bindings: &Bindings,
) -> Result<Operands> {
    let part = |at: &Pointer| part(at, gemm.scalar, step, buffers, bindings);
    let addend = matmul.addend.as_ref().map(|addend| part(&addend.pointer));
    Ok(Operands {
        a: part(&matmul.a.pointer)?,
        b: part(&matmul.b.pointer)?,
        c: addend.transpose()?,
        d: part(&matmul.result.pointer)?,
        bias: matmul.bias.as_ref().map(part).transpose()?,
    })
}

/// An operand's buffer from a pointer's element on.
fn part(
    pointer: &Pointer,
    scalar: Scalar,
    step: &Step,
    buffers: &[Buffer],
    bindings: &Bindings,
) -> Result<Buffer> {
    let of = match pointer.operand {
        StepOperand::Input(number) => &step.inputs[number],
        StepOperand::Output(number) => &step.outputs[number],
        StepOperand::Stack(_) | StepOperand::Scratch(_) => {
            return Err(Error::Unsupported { what: "a call on what is no operand" });
        }
    };
    let whole = &buffers[of.buffer.index()];
    let first = size(&pointer.offset, bindings)?.checked_mul(scalar.bytes() as usize);
    let first = first.ok_or(Error::TooLarge { what: "an offset" })?;
    whole.part(first, whole.len().saturating_sub(first))
}

/// A convolution with numbers, and its operands.
fn convolution(
    conv: &Conv,
    step: &Step,
    buffers: &[Buffer],
    bindings: &Bindings,
) -> Result<(Convolution, ConvOperands)> {
    let none = Error::Unsupported { what: "a convolution of integers by cuDNN" };
    let scalar = scalar(conv.dtype).ok_or(none)?;
    let axis = |of: &Window| -> Result<Axis> {
        let &Window { ref size, window, stride, dilation, pads } = of;
        Ok(Axis { size: self::size(size, bindings)?, window, stride, dilation, pads })
    };
    let part = |at: &Pointer| part(at, scalar, step, buffers, bindings);
    let convolution = Convolution {
        scalar,
        tf32: conv.tf32,
        images: size(&conv.images, bindings)?,
        channels: conv.channels,
        group: conv.group,
        axes: conv.windows.iter().map(axis).collect::<Result<_>>()?,
        channels_last: conv.channels_last,
        bias: conv.bias.is_some(),
        addend: conv.addend.is_some(),
        relu: conv.relu,
    };
    let operands = ConvOperands {
        x: part(&conv.image)?,
        w: part(&conv.weights)?,
        bias: conv.bias.as_ref().map(part).transpose()?,
        addend: conv.addend.as_ref().map(part).transpose()?,
        y: part(&conv.result)?,
    };
    Ok((convolution, operands))
}

/// An attention with numbers, and its operands.
fn attention(
    sdpa: &Sdpa,
    step: &Step,
    buffers: &[Buffer],
    bindings: &Bindings,
) -> Result<(Attention, cudnn::Operands)> {
    let none = Error::Unsupported { what: "attention of integers by cuDNN" };
    let scalar = scalar(sdpa.dtype).ok_or(none)?;
    let strided = |heads: &Heads| -> Result<Strided> {
        let (mut sizes, mut strides) = ([0; 4], [0; 4]);
        for (place, mode) in heads.modes.iter().enumerate() {
            sizes[place] = size(&mode.size, bindings)?;
            strides[place] = size(&mode.stride, bindings)?;
        }
        Ok(Strided { sizes, strides })
    };
    let part = |heads: &Heads| part(&heads.pointer, scalar, step, buffers, bindings);
    let Sdpa { q, k, v, mask, result, scale, causal, .. } = sdpa;
    let attention = Attention {
        scalar,
        q: strided(q)?,
        k: strided(k)?,
        v: strided(v)?,
        mask: mask.as_ref().map(strided).transpose()?,
        o: strided(result)?,
        scale_bits: scale.to_bits(),
        causal: *causal,
    };
    let operands = cudnn::Operands {
        q: part(q)?,
        k: part(k)?,
        v: part(v)?,
        mask: mask.as_ref().map(part).transpose()?,
        o: part(result)?,
    };
    Ok((attention, operands))
}
