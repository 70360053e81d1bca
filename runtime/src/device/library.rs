//! The libraries of NVIDIA that are called, and where each comes from.

use std::fmt;

/// A library that is loaded when it is first needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    /// The driver, `libcuda.so.1`.
    Driver,
    /// The compiler of CUDA C++, `libnvrtc.so.12` or `.13`.
    Nvrtc,
    /// The matrix products, `libcublasLt.so.12` or `.13`.
    CublasLt,
    /// The convolutions, attention, recurrent layers and softmaxes, `libcudnn.so.9`.
    Cudnn,
}

impl Library {
    /// All of them.
    pub const ALL: [Library; 4] =
        [Library::Driver, Library::Nvrtc, Library::CublasLt, Library::Cudnn];
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Library::Driver => {
                "the CUDA driver (libcuda.so.1; install NVIDIA's driver, 570 or newer)"
            }
            Library::Nvrtc => {
                "NVRTC (libnvrtc.so; install the CUDA toolkit 12 or 13, or the PyPI package \
                 nvidia-cuda-nvrtc-cu12 and put its folder nvidia/cuda_nvrtc/lib on LD_LIBRARY_PATH)"
            }
            Library::CublasLt => {
                "cuBLASLt (libcublasLt.so; install the CUDA toolkit 12 or 13, or the PyPI package \
                 nvidia-cublas-cu12 and put its folder nvidia/cublas/lib on LD_LIBRARY_PATH)"
            }
            Library::Cudnn => {
                "cuDNN (libcudnn.so; install version 9, or the PyPI package nvidia-cudnn-cu12 or -cu13 \
                 and put its folder nvidia/cudnn/lib on LD_LIBRARY_PATH)"
            }
        })
    }
}
