//! The status line: what is being done, on a terminal only.

use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// What is being done now, for the message of a timeout.
static NOW: Mutex<&'static str> = Mutex::new("starting");

/// A line on stderr that is rewritten, and the times that stages took.
pub(crate) struct Progress {
    terminal: bool,
    start: Instant,
    stages: Vec<Stage>,
}

/// A stage that has been timed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stage {
    /// What was done.
    pub(crate) name: &'static str,
    /// When it began, since the start of the command.
    pub(crate) start: Duration,
    /// How long it took.
    pub(crate) time: Duration,
}

/// How far a stage is, which any thread may show.
#[derive(Clone, Copy)]
pub(crate) struct Status {
    terminal: bool,
    start: Instant,
}

impl Status {
    /// Shows how many kernels are compiled, and how long it has taken.
    pub(crate) fn kernels(&self, done: usize, all: usize) {
        self.show(|time| kernels(done, all, time));
    }

    /// Shows how many bytes of weights are on the device.
    pub(crate) fn weights(&self, done: u64, all: u64) {
        self.show(|time| weights(done, all, time));
    }

    fn show(&self, text: impl FnOnce(Duration) -> String) {
        if self.terminal {
            rewrite(&text(self.start.elapsed()));
        }
    }
}

fn kernels(done: usize, all: usize, time: Duration) -> String {
    format!("compiling… kernels {done}/{all}, {}", crate::human::time(time))
}

fn weights(done: u64, all: u64, time: Duration) -> String {
    let mib = |bytes: u64| bytes >> 20;
    format!("uploading… weights {}/{} MiB, {}", mib(done), mib(all), crate::human::time(time))
}

/// Puts a text on the status line.
fn rewrite(text: &str) {
    // A status line that cannot be shown is no loss.
    let mut stderr = std::io::stderr().lock();
    let _ = write!(stderr, "\r\x1b[K{text}");
    let _ = stderr.flush();
}

impl Progress {
    /// A status line, if stderr is a terminal.
    pub(crate) fn new() -> Self {
        Self {
            terminal: std::io::stderr().is_terminal(),
            start: Instant::now(),
            stages: Vec::new(),
        }
    }

    /// Shows `name` while `work` is done, and times it.
    pub(crate) fn stage<T>(&mut self, name: &'static str, work: impl FnOnce() -> T) -> T {
        self.show(name);
        let start = self.start.elapsed();
        let result = work();
        self.stages.push(Stage { name, start, time: self.start.elapsed() - start });
        result
    }

    /// Shows `name` on the status line.
    pub(crate) fn show(&self, name: &'static str) {
        if let Ok(mut now) = NOW.lock() {
            *now = name;
        }
        if self.terminal {
            rewrite(&format!("{name}…"));
        }
    }

    /// To show how far a stage is that begins now.
    pub(crate) fn status(&self) -> Status {
        Status { terminal: self.terminal, start: Instant::now() }
    }

    /// Clears the status line.
    pub(crate) fn clear(&self) {
        if self.terminal {
            let _ = write!(std::io::stderr().lock(), "\r\x1b[K");
        }
    }

    /// The stages so far, in order.
    pub(crate) fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// The time that all stages of this name took together.
    pub(crate) fn total(&self, name: &str) -> Duration {
        self.stages.iter().filter(|stage| stage.name == name).map(|stage| stage.time).sum()
    }
}

/// What is being done now.
pub(crate) fn now() -> &'static str {
    NOW.lock().map_or("working", |now| *now)
}

#[cfg(test)]
mod tests {
    use super::{kernels, weights};
    use std::time::Duration;

    #[test]
    fn stages_say_how_far_they_are() {
        let time = Duration::from_millis(3200);
        assert_eq!(kernels(7, 19, time), "compiling… kernels 7/19, 3.20 s");
        assert_eq!(weights(5 << 20, (210 << 20) + 7, time), "uploading… weights 5/210 MiB, 3.20 s");
    }
}
