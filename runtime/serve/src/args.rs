//! The command line.

use clap::Parser;
use graphene_runtime::Device;
use graphene_serve::{Error, Security, ServerConfig};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// Serves ONNX models: Open Inference Protocol by HTTP and gRPC, embeddings for OpenAI's and text-embeddings-inference's
/// clients.
#[derive(Parser, Debug)]
#[command(version, max_term_width = 100)]
pub(crate) struct Args {
    /// What is served: zoo:NAME, a model file, a folder with model.onnx, or a folder of such folders
    pub(crate) models: String,
    /// The model's name, where it is a file or a folder with model.onnx; by default the file's or the folder's
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Where HTTP is
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8000")]
    pub(crate) http: SocketAddr,
    /// Where gRPC is
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8001")]
    pub(crate) grpc: SocketAddr,
    /// Where models run: auto, cpu, cuda or cuda:NUMBER
    #[arg(long, default_value = "auto", value_parser = graphene_serve::device)]
    pub(crate) device: Device,
    /// Threads that compute, the host's cores by default
    #[arg(long)]
    pub(crate) threads: Option<usize>,
    /// Threads for connections
    #[arg(long, default_value_t = 2)]
    pub(crate) workers: usize,
    /// Bytes that weights, intermediates and buffers may take, such as 8GiB
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) memory: Option<u64>,
    /// A file of settings: [limits], [model]; see the README
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Elements that models compute with: model, f32, tf32, f16 or bf16
    #[arg(long)]
    pub(crate) dtype: Option<String>,
    /// Seconds between two looks for new versions; 0 for none
    #[arg(long, value_name = "SECONDS")]
    pub(crate) poll: Option<u64>,
    /// Seconds from SIGTERM for which HTTP tells that the server isn't ready, even if no request runs
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub(crate) drain: u64,
    /// Clients may load and unload models
    #[arg(long)]
    pub(crate) control: bool,
    /// A file of tokens, one a line: requests have to bear one of them
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// A PEM file of certificates: connections are encrypted
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// A PEM file of the certificate's key
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// What is logged, such as info or graphene_serve=debug
    #[arg(long, env = "RUST_LOG", default_value = "info", value_name = "FILTER")]
    pub(crate) log: String,
}

impl Args {
    /// The settings: those of the file, and above them what the command line says.
    ///
    /// # Errors
    /// [`Error::Folder`] for a file that cannot be read, or that holds something else.
    pub(crate) fn config(&self) -> Result<ServerConfig, Error> {
        let mut config = match &self.config {
            None => ServerConfig::default(),
            Some(path) => ServerConfig::read(path)?,
        };
        if let Some(dtype) = &self.dtype {
            config.model.dtype.clone_from(dtype);
        }
        if let Some(name) = &self.name {
            config.name = Some(name.clone());
        }
        if let Some(poll) = self.poll {
            config.poll_s = poll;
        }
        config.control |= self.control;
        Ok(config)
    }

    /// Tokens of the file; none where there is no file.
    ///
    /// # Errors
    /// [`Error::Folder`] for a file that cannot be read, or that holds no token.
    pub(crate) fn tokens(&self) -> Result<Vec<String>, Error> {
        let Some(path) = &self.token_file else { return Ok(Vec::new()) };
        let refused = |reason: String| Error::Folder { path: path.display().to_string(), reason };
        let text = std::fs::read_to_string(path).map_err(|error| refused(error.to_string()))?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let tokens: Vec<String> = lines.map(str::to_owned).collect();
        if tokens.is_empty() {
            return Err(refused("it holds no token; one a line is needed".to_owned()));
        }
        Ok(tokens)
    }

    /// Certificate and key, if connections are encrypted.
    ///
    /// # Errors
    /// [`Error::Folder`] for files that are not such.
    pub(crate) fn tls(&self) -> Result<Option<Arc<rustls::ServerConfig>>, Error> {
        let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) else {
            return Ok(None);
        };
        let refused = |path: &PathBuf, reason: String| Error::Folder {
            path: path.display().to_string(),
            reason,
        };
        let chain = CertificateDer::pem_file_iter(certificate)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| refused(certificate, error.to_string()))?;
        let secret =
            PrivateKeyDer::from_pem_file(key).map_err(|error| refused(key, error.to_string()))?;
        Security::tls(chain, secret).map(Some).map_err(|reason| refused(certificate, reason))
    }

    /// Beyond the loopback, whoever can reach the address may ask: that is said.
    ///
    /// # Errors
    /// [`Error::Server`] where clients may load models and nobody asks who they are.
    pub(crate) fn check_exposure(&self, security: &Security) -> Result<(), Error> {
        let open = [self.http, self.grpc].into_iter().find(|address| !address.ip().is_loopback());
        let (Some(address), true) = (open, security.tokens.is_empty()) else { return Ok(()) };
        if self.control {
            let what = format!(
                "{address} is not the loopback, and --control lets clients load models: --token-file is needed"
            );
            return Err(Error::Server { what });
        }
        tracing::warn!(
            "{address} is not the loopback, and everybody who reaches it may ask (--token-file)"
        );
        Ok(())
    }
}

/// A number of bytes such as `512MiB`.
fn bytes(text: &str) -> Result<u64, String> {
    let refused = || format!("{text:?} is no number of bytes, such as 8GiB or 512MiB");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim() {
        "" | "B" => 0,
        "KiB" | "K" => 10,
        "MiB" | "M" => 20,
        "GiB" | "G" => 30,
        "TiB" | "T" => 40,
        _ => return Err(refused()),
    };
    let number: u64 = number.parse().map_err(|_| refused())?;
    number.checked_mul(1 << shift).ok_or_else(refused)
}
