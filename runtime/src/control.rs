//! What may end a run before it is done: a deadline, and a caller who no longer wants the answer.

use crate::error::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// What is asked before each step, with its number, whether the run may go on; nothing where no one can end it.
pub(crate) type Control<'a> = Option<&'a mut dyn FnMut(usize) -> Result<()>>;

/// How a run may end early. The default lets it run to its end.
///
/// Both are looked at before the first step and between any two, so a step that is running is never cut off.
///
/// ```
/// # use graphene_runtime::{Cancel, Engine, Error, Input, RunOptions};
/// # use std::time::{Duration, Instant};
/// # let zoo = graphene_models::build("mlp-2x4", &graphene_models::Options::default())?;
/// # let source = graphene_runtime::Source::with_external(zoo.encode(), zoo.weights().clone());
/// # let model = Engine::new()?.model().load_from(&source)?;
/// let cancel = Cancel::new();
/// let deadline = Instant::now() + Duration::from_secs(5);
/// let options = RunOptions::new().deadline(deadline).cancelled_by(&cancel);
/// cancel.set(); // From any thread.
/// let refused = model.context().run_with(&[Input::new(&[0.0_f32; 4], &[1, 4])], &options);
/// assert_eq!(refused.unwrap_err(), Error::Cancelled);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    deadline: Option<Instant>,
    cancel: Option<Cancel>,
}

impl RunOptions {
    /// A run without a deadline that nobody cancels.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends the run with [`Error::Deadline`] once this instant has passed. Of two deadlines the earlier one counts.
    #[must_use]
    pub fn deadline(mut self, at: Instant) -> Self {
        self.deadline = Some(self.deadline.map_or(at, |before| before.min(at)));
        self
    }

    /// Ends the run with [`Error::Cancelled`] once `cancel` is set.
    #[must_use]
    pub fn cancelled_by(mut self, cancel: &Cancel) -> Self {
        self.cancel = Some(cancel.clone());
        self
    }

    /// Whether something may end the run early.
    pub(crate) fn may_end(&self) -> bool {
        self.deadline.is_some() || self.cancel.is_some()
    }

    /// Whether the run may go on.
    ///
    /// # Errors
    /// [`Error::Cancelled`] and [`Error::Deadline`].
    pub(crate) fn check(&self) -> Result<()> {
        if self.cancel.as_ref().is_some_and(Cancel::is_set) {
            return Err(Error::Cancelled);
        }
        match self.deadline {
            Some(at) if Instant::now() >= at => Err(Error::Deadline),
            Some(_) | None => Ok(()),
        }
    }
}

/// A flag that ends runs from another thread. Clones are the same flag.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// A flag that is not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets it, for good.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it is set.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::{Cancel, RunOptions};
    use crate::Error;
    use std::time::{Duration, Instant};

    #[test]
    fn runs_end_by_deadline_and_by_flag() {
        let now = Instant::now();
        let later = now + Duration::from_secs(3600);
        assert_eq!(RunOptions::new().check(), Ok(()));
        assert_eq!(RunOptions::new().deadline(later).check(), Ok(()));
        assert_eq!(RunOptions::new().deadline(later).deadline(now).check(), Err(Error::Deadline));
        let cancel = Cancel::new();
        let options = RunOptions::new().deadline(later).cancelled_by(&cancel);
        assert_eq!(options.check(), Ok(()));
        cancel.clone().set();
        assert_eq!(options.check(), Err(Error::Cancelled));
    }
}
