//! `graphene-serve`: serves ONNX models by HTTP and gRPC.

mod args;

use args::Args;
use clap::Parser;
use graphene_runtime::Engine;
use graphene_serve::{Error, Listening, Security, Server, listen};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let args = Args::parse();
    let filter = EnvFilter::try_new(&args.log).unwrap_or_else(|_| EnvFilter::new("info"));
    let ansi = std::io::stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(ansi)
        .init();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("graphene-serve: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), Error> {
    let failed = |what: String| Error::Server { what };
    let config = args.config()?;
    let security = Security { tokens: args.tokens()?, tls: args.tls()? };
    args.check_exposure(&security)?;
    let mut engine = Engine::builder().device(args.device);
    if let Some(threads) = args.threads {
        engine = engine.threads(threads);
    }
    if let Some(bytes) = args.memory {
        engine = engine.memory_limit(bytes);
    }
    let engine = engine.build().map_err(|error| failed(error.to_string()))?;
    tracing::info!("models run on {}", engine.device().name);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(args.workers)
        .thread_name("serve")
        .enable_all()
        .build()
        .map_err(|error| failed(error.to_string()))?;
    let server = Server::open(&engine, &args.models, config)?;
    runtime.block_on(serve(&server, args, &security))
}

/// Serves until the process is told to end.
async fn serve(server: &Server, args: &Args, security: &Security) -> Result<(), Error> {
    let unheard = |error: std::io::Error| Error::Server { what: error.to_string() };
    let mut terminate = signal(SignalKind::terminate()).map_err(unheard)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(unheard)?;
    let mut told = async move || {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let listening = listen(server, (args.http, args.grpc), security).await?;
    let scheme = if security.tls.is_some() { "https" } else { "http" };
    tokio::select! {
        loaded = load(server) => loaded?,
        () = told() => return Ok(()),
    }
    println!("{scheme}://{}", listening.http());
    println!("grpc://{}", listening.grpc());
    let poll = tokio::spawn(poll(server.clone()));
    told().await;
    poll.abort();
    drain(server, listening, Duration::from_secs(args.drain), told).await;
    Ok(())
}

/// Loads all models. One that fails ends the process if there is no other.
async fn load(server: &Server) -> Result<(), Error> {
    let loading = server.clone();
    let loaded = tokio::task::spawn_blocking(move || loading.refresh()).await;
    match loaded.map_err(|error| Error::Server { what: error.to_string() })? {
        Err(error) if server.index().len() == 1 => Err(error),
        // The log has them, and the server isn't ready.
        Err(_) | Ok(()) => Ok(()),
    }
}

/// Looks for new versions from time to time.
async fn poll(server: Server) {
    let seconds = server.config().poll_s;
    if seconds == 0 {
        return;
    }
    loop {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        let looking = server.clone();
        // What failed is in the log and in the index.
        let _ = tokio::task::spawn_blocking(move || looking.refresh()).await;
    }
}

/// Is not ready for a while, and answers what came, for as long as a request may take; a second signal ends the process at
/// once.
async fn drain(
    server: &Server,
    listening: Listening,
    grace: Duration,
    mut told: impl AsyncFnMut(),
) {
    tracing::info!("not ready: no more requests are taken; those that came are answered");
    server.drain();
    tokio::select! {
        () = listening.drain(grace) => tracing::info!("all requests are answered"),
        () = tokio::time::sleep(grace.saturating_add(server.limits().deadline())) => {
            tracing::warn!("ended: some connections did not take their answers in time");
        }
        () = told() => {
            tracing::warn!("ended before all requests were answered");
            std::process::exit(130);
        }
    }
}
