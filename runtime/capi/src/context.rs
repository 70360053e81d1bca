//! Contexts.

#![allow(unsafe_code)] // Exported names, and arrays of the caller's.

use crate::cancel::Cancel;
use crate::input::{Input, OutputBuffer, Size, inputs, inputs_and_outputs, sizes};
use crate::model::Model;
use crate::outputs::{Outputs, give};
use crate::raw::{needed, shared};
use crate::status::{Failure, Status, free, guard};
use graphene_runtime as rt;
use std::mem::MaybeUninit;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

/// Runs a model, one request at a time. Any thread may use it, one at a time: a second one is told
/// `GRAPHENE_STATUS_MISUSE`. Several contexts of a model run side by side.
pub struct Context(Mutex<rt::Context>);

/// How a run may end early. Zeros let it run to its end.
#[repr(C)]
pub struct RunOptions {
    /// Ends the run with `GRAPHENE_STATUS_DEADLINE` so many milliseconds after the call, waiting included; 0 for never.
    pub deadline_ms: u64,
    /// Ends the run with `GRAPHENE_STATUS_CANCELLED` once it is set; may be null.
    pub cancel: *const Cancel,
}

impl Context {
    fn lock(&self) -> Result<MutexGuard<'_, rt::Context>, Failure> {
        match self.0.try_lock() {
            Ok(context) => Ok(context),
            // A context that panicked has put itself in order.
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                Err(Failure::misuse(1008, "the context is in use by another thread"))
            }
        }
    }
}

/// The runtime's options for a caller's, which may be null.
pub(crate) unsafe fn run_options(given: Option<&RunOptions>) -> rt::RunOptions {
    let options = rt::RunOptions::new();
    let Some(given) = given else { return options };
    let deadline = match given.deadline_ms {
        0 => None,
        // One too far away to be told is none.
        milliseconds => Instant::now().checked_add(Duration::from_millis(milliseconds)),
    };
    let options = match deadline {
        Some(at) => options.deadline(at),
        None => options,
    };
    // SAFETY: the caller vouches that it is null or a flag.
    match unsafe { shared(given.cancel) } {
        Some(cancel) => options.cancelled_by(&cancel.0),
        None => options,
    }
}

/// A context of a model. It takes memory when it runs. It is the caller's, to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn graphene_context_new(
    model: Option<&Model>,
    context: Option<&mut MaybeUninit<*mut Context>>,
) -> Status {
    guard(|| {
        let (model, place) = (needed(model, "model")?, needed(context, "context")?);
        let context = Context(Mutex::new(model.model.context()));
        place.write(Box::into_raw(Box::new(context)));
        Ok(())
    })
}

/// Binds the model at these sizes, so that the first request of them runs like later ones.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphene_context_bind(
    context: *mut Context,
    dims: *const Size,
    dim_count: usize,
) -> Status {
    guard(|| {
        // SAFETY: the caller vouches for the context, and for the array and its names.
        let (context, sizes) = unsafe { (shared(context), sizes(dims, dim_count)?) };
        let context = needed(context, "context")?;
        context.lock()?.bind(&sizes)?;
        Ok(())
    })
}

/// Runs the model. `options` may be null. The outputs are the caller's, to be freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphene_context_run(
    context: *mut Context,
    inputs: *const Input,
    input_count: usize,
    options: Option<&RunOptions>,
    outputs: Option<&mut MaybeUninit<*mut Outputs>>,
) -> Status {
    guard(|| {
        // SAFETY: the caller vouches for the context.
        let context = needed(unsafe { shared(context) }, "context")?;
        // SAFETY: the caller vouches for the arrays and what they point at.
        let (inputs, options) =
            unsafe { (self::inputs(inputs, input_count)?, run_options(options)) };
        give(outputs, || Ok(context.lock()?.run_with(&inputs, &options)?))
    })
}

/// Runs the model and writes its outputs to memory of the caller's; those that are not given are left out. `options` may
/// be null. What is written there after a failed run is undefined.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphene_context_run_into(
    context: *mut Context,
    inputs: *const Input,
    input_count: usize,
    outputs: *const OutputBuffer,
    output_count: usize,
    options: Option<&RunOptions>,
) -> Status {
    guard(|| {
        // SAFETY: the caller vouches for the context.
        let context = needed(unsafe { shared(context) }, "context")?;
        // SAFETY: the caller vouches for the arrays and what they point at.
        let ((inputs, mut outputs), options) = unsafe {
            let both = inputs_and_outputs((inputs, input_count), (outputs, output_count))?;
            (both, run_options(options))
        };
        Ok(context.lock()?.run_into(&inputs, &mut outputs, &options)?)
    })
}

/// Frees a context; null is nothing. No call that was given it may still be going on.
#[unsafe(no_mangle)]
pub extern "C" fn graphene_context_free(context: Option<Box<Context>>) {
    free(context);
}
