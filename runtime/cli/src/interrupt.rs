//! Signals: the first ends what is being measured, whose results are then told; the next ends the command.

use crate::error::Error;
use crate::exit::Exit;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// A signal that asks the command to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Signal {
    /// SIGINT, as from Ctrl-C.
    Interrupt,
    /// SIGTERM.
    Terminate,
}

impl Signal {
    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
        }
    }

    /// How the command ends by it.
    pub(crate) fn exit(self) -> Exit {
        match self {
            Self::Interrupt => Exit::Interrupted,
            Self::Terminate => Exit::Terminated,
        }
    }
}

/// Whether there is something to tell of, so that a signal waits for that.
static MEASURING: AtomicBool = AtomicBool::new(false);
/// The exit code of the signal that came; 0 if none did.
static CAME: AtomicU8 = AtomicU8::new(0);

/// Marks that results are being gathered, until it is dropped.
pub(crate) struct Measuring(());

impl Measuring {
    /// From now on, the first signal ends what is being measured only.
    pub(crate) fn begin() -> Self {
        MEASURING.store(true, Ordering::SeqCst);
        Self(())
    }
}

impl Drop for Measuring {
    fn drop(&mut self) {
        MEASURING.store(false, Ordering::SeqCst);
    }
}

/// The signal that came, if one did.
pub(crate) fn came() -> Option<Signal> {
    let code = CAME.load(Ordering::SeqCst);
    [Signal::Interrupt, Signal::Terminate].into_iter().find(|signal| signal.exit().code() == code)
}

/// Whether what is being measured is to end.
pub(crate) fn stops() -> bool {
    came().is_some()
}

/// Has a thread wait for signals. `end` tells of the error and ends the process.
#[cfg(unix)]
pub(crate) fn watch(end: impl Fn(&Error) + Send + 'static) {
    use signal_hook::consts::{SIGINT, SIGTERM};
    // Where it is refused, signals end the process as they do by default.
    let Ok(mut signals) = signal_hook::iterator::Signals::new([SIGINT, SIGTERM]) else { return };
    std::thread::spawn(move || {
        for number in signals.forever() {
            let signal = if number == SIGTERM { Signal::Terminate } else { Signal::Interrupt };
            let first = !stops();
            CAME.store(signal.exit().code(), Ordering::SeqCst);
            if first && MEASURING.load(Ordering::SeqCst) {
                continue;
            }
            end(&Error::Signal { signal, stage: crate::progress::now() });
        }
    });
}

/// There are no such signals.
#[cfg(not(unix))]
pub(crate) fn watch(_: impl Fn(&Error) + Send + 'static) {}
