//! The server as its clients see it, on the loopback.

#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod batch;
mod binary;
mod deploy;
mod grpc;
mod grpc_client;
mod grpc_errors;
mod grpc_fields;
mod grpc_stream;
mod haproxy;
mod harness;
mod health;
mod limits_http;
mod metrics;
mod oip;
mod openai;
mod process;
mod repository;
mod security;
mod tei;
mod text;
