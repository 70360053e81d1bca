//! The server as its clients see it, on the loopback.

#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod binary;
mod harness;
mod health;
mod limits_http;
mod metrics;
mod oip;
