//! Pools of contexts.

#![allow(unsafe_code)] // Exported names, and arrays of the caller's.

use crate::context::{RunOptions, run_options};
use crate::input::{Input, OutputBuffer, inputs, inputs_and_outputs};
use crate::model::Model;
use crate::outputs::{Outputs, give};
use crate::raw::needed;
use crate::status::{Status, free, guard};
use graphene_runtime as rt;
use std::mem::MaybeUninit;

/// Contexts of a model that are lent to one call at a time, first come first served. Any thread may use it, several at a
/// time.
pub struct Pool(rt::Pool);

/// How a pool is to be. Zeros are the defaults.
#[repr(C)]
pub struct PoolOptions {
    /// How many contexts, and so runs side by side; 0 for one.
    pub contexts: usize,
    /// How many calls may wait for a context; 0 for 64. More are refused with `GRAPHENE_STATUS_BUSY`.
    pub queue: usize,
}

/// A pool of this model's contexts. `options` may be null. It is the caller's, to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn graphene_pool_new(
    model: Option<&Model>,
    options: Option<&PoolOptions>,
    pool: Option<&mut MaybeUninit<*mut Pool>>,
) -> Status {
    guard(|| {
        let (model, place) = (needed(model, "model")?, needed(pool, "pool")?);
        place.write(std::ptr::null_mut());
        let mut builder = rt::Pool::builder(&model.model);
        if let Some(options) = options {
            builder = builder.contexts(options.contexts);
            if options.queue > 0 {
                builder = builder.queue(options.queue);
            }
        }
        place.write(Box::into_raw(Box::new(Pool(builder.build()?))));
        Ok(())
    })
}

/// Runs the model on this thread when a context is free. `options` may be null. The outputs are the caller's, to be freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphene_pool_run(
    pool: Option<&Pool>,
    inputs: *const Input,
    input_count: usize,
    options: Option<&RunOptions>,
    outputs: Option<&mut MaybeUninit<*mut Outputs>>,
) -> Status {
    guard(|| {
        let pool = &needed(pool, "pool")?.0;
        // SAFETY: the caller vouches for the arrays and what they point at.
        let (inputs, options) =
            unsafe { (self::inputs(inputs, input_count)?, run_options(options)) };
        give(outputs, || Ok(pool.run(&inputs, &options)?))
    })
}

/// The same to memory of the caller's; see `graphene_context_run_into`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphene_pool_run_into(
    pool: Option<&Pool>,
    inputs: *const Input,
    input_count: usize,
    outputs: *const OutputBuffer,
    output_count: usize,
    options: Option<&RunOptions>,
) -> Status {
    guard(|| {
        let pool = &needed(pool, "pool")?.0;
        // SAFETY: the caller vouches for the arrays and what they point at.
        let ((inputs, mut outputs), options) = unsafe {
            let both = inputs_and_outputs((inputs, input_count), (outputs, output_count))?;
            (both, run_options(options))
        };
        Ok(pool.acquire(&options)?.run_into(&inputs, &mut outputs, &options)?)
    })
}

/// Frees a pool; null is nothing. No call that was given it may still be going on.
#[unsafe(no_mangle)]
pub extern "C" fn graphene_pool_free(pool: Option<Box<Pool>>) {
    free(pool);
}
