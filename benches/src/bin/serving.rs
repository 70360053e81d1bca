//! The server beside what it stands on: what HTTP adds to a run, and what batches get done.
//!
//! ```text
//! serving overhead [ROUNDS]
//! serving load MODEL [--device cpu|cuda] [--dtype f16] [--lengths 16..384] [--seconds 10] [--connections 64]
//!                    [--workers 2] [--contexts N] [--unbatched] [--steady] [--embed | --pooled]
//! ```
//!
//! `overhead`: bert-base-tiny 1x32 by binary tensors over one connection, in turn with a bare hyper server that reads and
//! writes as many bytes, and with `Context::run_into`. `load`: clients that ask again as soon as they are answered give the
//! peak rate; then requests come at 70 % of it whether earlier ones are answered or not, at random (Poisson) or, with
//! `--steady`, evenly. Where all lengths are one, `Context::run` at its best batch stands beside it. Lines of JSON.

use axum::body::Body;
use graphene_runtime::{Context, DType, Device, Engine, Input, OutputMut, RunOptions, Tensor};
use graphene_serve::{
    BatchConfig, Limits, ModelConfig, Security, Server, ServerConfig, TextConfig, Version, listen,
};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome<()> {
    let all: Vec<String> = std::env::args().skip(1).collect();
    match all.first().map(|word| &**word) {
        Some("overhead") => overhead(all.get(1).map_or(Ok(4000), |text| text.parse())?),
        Some("load") => load(&Case::parse(&all[1..])?),
        _ => Err("what is measured: overhead, or load MODEL".into()),
    }
}

/// Numbers from a seed, xorshift's.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Between 0 and 1, never 0.
    fn part(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 1.0) / (1_u64 << 53) as f64
    }

    fn within(&mut self, range: &RangeInclusive<usize>) -> usize {
        range.start() + self.next() as usize % (range.end() - range.start() + 1)
    }
}

/// The inputs of a model of tokens, of one row.
fn tokens(version: &Version, length: usize, random: &mut Random) -> Outcome<Vec<(String, Tensor)>> {
    let mut inputs = Vec::new();
    for (number, port) in version.model().inputs().iter().enumerate() {
        let value = |random: &mut Random| match (number, port.name().contains("mask")) {
            (_, true) => 1,
            (0, false) => 5 + (random.next() % 1000) as i64,
            _ => 0,
        };
        let data: Vec<i64> = (0..length).map(|_| value(random)).collect();
        inputs.push((port.name().to_owned(), Tensor::from_vec(vec![1, length], data)?));
    }
    Ok(inputs)
}

/// A request by HTTP with binary tensors.
fn binary_request(version: &Version, inputs: &[(String, Tensor)]) -> Vec<u8> {
    let mut described = Vec::new();
    let mut data = Vec::new();
    for (name, tensor) in inputs {
        described.push(format!(
            r#"{{"name":"{name}","datatype":"INT64","shape":{:?},"parameters":{{"binary_data_size":{}}}}}"#,
            tensor.shape(),
            tensor.bytes().len()
        ));
        data.extend_from_slice(tensor.bytes());
    }
    let json = format!(
        r#"{{"inputs":[{}],"parameters":{{"binary_data_output":true}}}}"#,
        described.join(",")
    );
    let path = format!("/v2/models/{}/infer", version.name());
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nInference-Header-Content-Length: {}\r\nContent-Length: {}\r\n\r\n",
        json.len(),
        json.len() + data.len()
    );
    [head.into_bytes(), json.into_bytes(), data].concat()
}

/// A request for a text's embedding, by its tokens.
fn embed_request(inputs: &[(String, Tensor)]) -> Outcome<Vec<u8>> {
    // The built-in tokenizer of the zoo has fewer ids than the model.
    let ids: Vec<i64> = inputs[0].1.as_slice::<i64>()?.iter().map(|id| 5 + id % 100).collect();
    let json = format!(r#"{{"inputs":[{ids:?}]}}"#);
    let head = format!(
        "POST /embed HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        json.len()
    );
    Ok([head.into_bytes(), json.into_bytes()].concat())
}

/// A connection that is asked one thing after the other.
struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    fn open(address: SocketAddr) -> Outcome<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: vec![0; 1 << 16] })
    }

    /// Sends a request, and gives the status and the length of the answer's body.
    fn ask(&mut self, request: &[u8]) -> Outcome<(u16, usize)> {
        self.stream.write_all(request)?;
        let mut filled = 0;
        let (head, length) = loop {
            let read = self.stream.read(&mut self.buffer[filled..])?;
            if read == 0 {
                return Err("the connection was closed".into());
            }
            filled += read;
            if let Some(end) = self.buffer[..filled].windows(4).position(|four| four == b"\r\n\r\n")
            {
                let head = std::str::from_utf8(&self.buffer[..end])?.to_ascii_lowercase();
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                let length: usize = length.ok_or("an answer without a length")?.trim().parse()?;
                filled -= end + 4;
                break (head, length);
            }
        };
        let mut left = length.saturating_sub(filled);
        while left > 0 {
            let most = left.min(self.buffer.len());
            let read = self.stream.read(&mut self.buffer[..most])?;
            if read == 0 {
                return Err("the connection was closed".into());
            }
            left -= read;
        }
        let status = head.split(' ').nth(1).ok_or("an answer without a status")?.parse()?;
        Ok((status, length))
    }
}

fn runtime(workers: usize) -> Outcome<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build()?)
}

const FREE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

fn overhead(rounds: usize) -> Outcome<()> {
    let engine = Engine::builder().device(Device::Cpu).build()?;
    let server = Server::new(&engine, "zoo:bert-base-tiny", ServerConfig::default())?;
    let version = server.find_or_only(None)?;
    let runtime = runtime(2)?;
    let listening = runtime.block_on(listen(&server, (FREE, FREE), &Security::default()))?;
    let inputs = tokens(&version, 32, &mut Random(1))?;
    let request = binary_request(&version, &inputs);
    let mut infer = Connection::open(listening.http())?;
    let (status, length) = infer.ask(&request)?;
    if status != 200 {
        return Err(format!("status {status}").into());
    }
    let mut echo = Connection::open(runtime.block_on(echo(length))?)?;

    let mut context = version.model().context();
    let given: Vec<Input<'_>> = inputs.iter().map(|(_, tensor)| Input::from(tensor)).collect();
    let outputs = context.run(&given)?;
    let mut places: Vec<Vec<u8>> =
        outputs.tensors().iter().map(|tensor| tensor.bytes().to_vec()).collect();
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..rounds {
        let began = Instant::now();
        echo.ask(&request)?;
        let echoed = Instant::now();
        infer.ask(&request)?;
        let inferred = Instant::now();
        let mut outputs: Vec<OutputMut<'_>> =
            places.iter_mut().map(|place| OutputMut::bytes(DType::F32, place)).collect();
        context.run_into(&given, &mut outputs, &RunOptions::new())?;
        let ran = Instant::now();
        for (times, time) in
            times.iter_mut().zip([echoed - began, inferred - echoed, ran - inferred])
        {
            times.push(time.as_secs_f64() * 1e6);
        }
    }
    let [echo, infer, run] = times.map(|mut all| {
        all.sort_by(f64::total_cmp);
        (all[all.len() / 2], all[all.len() * 99 / 100])
    });
    println!(
        r#"{{"case":"overhead, bert-base-tiny 1x32","rounds":{rounds},"echo_us":{:.1},"infer_us":{:.1},"run_us":{:.1},"beyond_us":{:.1},"infer_p99_us":{:.1},"echo_p99_us":{:.1}}}"#,
        echo.0,
        infer.0,
        run.0,
        infer.0 - echo.0 - run.0,
        infer.1,
        echo.1
    );
    Ok(())
}

/// A bare server that reads a body and answers with so many bytes.
async fn echo(length: usize) -> Outcome<SocketAddr> {
    let listener = tokio::net::TcpListener::bind(FREE).await?;
    let address = listener.local_addr()?;
    let answer = axum::body::Bytes::from(vec![b'x'; length]);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            let answer = answer.clone();
            let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
                let answer = answer.clone();
                async move {
                    let _ = axum::body::to_bytes(Body::new(request.into_body()), usize::MAX).await;
                    Ok::<_, std::convert::Infallible>(hyper::Response::new(Body::from(answer)))
                }
            });
            let http = hyper::server::conn::http1::Builder::new();
            tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
        }
    });
    Ok(address)
}

/// What is asked of the server.
struct Case {
    model: String,
    device: Device,
    dtype: String,
    lengths: RangeInclusive<usize>,
    seconds: f64,
    connections: usize,
    workers: usize,
    batched: bool,
    steady: bool,
    embed: bool,
    pooled: bool,
    contexts: Option<usize>,
}

impl Case {
    fn parse(words: &[String]) -> Outcome<Self> {
        let mut case = Self {
            model: words.first().ok_or("a model is needed")?.clone(),
            device: Device::Cpu,
            dtype: "model".to_owned(),
            lengths: 128..=128,
            seconds: 10.0,
            connections: 64,
            workers: 2,
            batched: true,
            steady: false,
            embed: false,
            pooled: false,
            contexts: None,
        };
        let mut rest = words[1..].iter();
        while let Some(word) = rest.next() {
            let mut value = || rest.next().ok_or(format!("{word} needs a value"));
            match &**word {
                "--device" => case.device = graphene_serve::device(value()?)?,
                "--dtype" => case.dtype.clone_from(value()?),
                "--lengths" => {
                    let text = value()?;
                    let (low, high) = text.split_once("..").unwrap_or((text, text));
                    case.lengths = low.parse()?..=high.parse()?;
                }
                "--seconds" => case.seconds = value()?.parse()?,
                "--connections" => case.connections = value()?.parse()?,
                "--workers" => case.workers = value()?.parse()?,
                "--unbatched" => case.batched = false,
                "--steady" => case.steady = true,
                "--embed" => case.embed = true,
                "--pooled" => (case.embed, case.pooled) = (true, true),
                "--contexts" => case.contexts = Some(value()?.parse()?),
                other => return Err(format!("{other:?} is no flag").into()),
            }
        }
        Ok(case)
    }

    fn text(&self) -> String {
        let batches = if self.batched { "batched" } else { "unbatched" };
        let (low, high) = (self.lengths.start(), self.lengths.end());
        format!("{} {} {low}..{high}, {batches}", self.model, self.dtype)
    }
}

fn load(case: &Case) -> Outcome<()> {
    let engine = Engine::builder().device(case.device).build()?;
    let batch = BatchConfig { enabled: case.batched, ..BatchConfig::default() };
    let text = TextConfig { pooled: case.pooled, ..TextConfig::default() };
    let (dtype, contexts) = (case.dtype.clone(), case.contexts);
    let model = ModelConfig { batch, dtype, contexts, text, ..ModelConfig::default() };
    let limits = Limits { queue: 1 << 16, queue_bytes: 1 << 34, ..Limits::default() };
    let config = ServerConfig { model, limits, ..ServerConfig::default() };
    let server = Server::new(&engine, &case.model, config)?;
    let version = server.find_or_only(None)?;
    let runtime = runtime(case.workers)?;
    let listening = runtime.block_on(listen(&server, (FREE, FREE), &Security::default()))?;
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let requests: Vec<Vec<u8>> = (0..512)
        .map(|_| {
            let length = random.within(&case.lengths);
            let inputs = tokens(&version, length, &mut random)?;
            if case.embed { embed_request(&inputs) } else { Ok(binary_request(&version, &inputs)) }
        })
        .collect::<Outcome<_>>()?;
    let requests = Arc::new(requests);

    let mut direct = 0.0;
    if case.lengths.start() == case.lengths.end() {
        direct = best_batch(&version, *case.lengths.start(), case)?;
    }
    // Shapes are bound and connections opened before anything is timed.
    closed(case, listening.http(), &requests, case.seconds / 4.0)?;
    let before = version.statistics();
    let peak = closed(case, listening.http(), &requests, case.seconds)?;
    let after = version.statistics();
    let executions = (after.executions - before.executions).max(1);
    println!(
        r#"{{"case":"{}","peak_rows_s":{peak:.1},"over_direct":{:.3},"rows_a_batch":{:.2},"padding":{:.3}}}"#,
        case.text(),
        if direct > 0.0 { peak / direct } else { f64::NAN },
        (after.inferences - before.inferences) as f64 / executions as f64,
        (after.padding - before.padding) as f64
            / (after.positions - before.positions).max(1) as f64
    );
    let rate = 0.7 * if direct > 0.0 { direct.min(peak) } else { peak };
    open(case, listening.http(), &requests, rate)
}

/// Rows a second of `Context::run` at the batch that has most.
fn best_batch(version: &Version, length: usize, case: &Case) -> Outcome<f64> {
    let mut context: Context = version.model().context();
    let mut best = (0.0, 0);
    for rows in [1, 2, 4, 8, 16, 32, 64] {
        let one = tokens(version, length, &mut Random(1))?;
        let many: Vec<Tensor> = one
            .iter()
            .map(|(_, tensor)| {
                let data = tensor.as_slice::<i64>()?.repeat(rows);
                Ok(Tensor::from_vec(vec![rows, length], data)?)
            })
            .collect::<Outcome<_>>()?;
        let inputs: Vec<Input<'_>> = many.iter().map(Input::from).collect();
        context.run(&inputs)?;
        let (began, mut runs) = (Instant::now(), 0);
        while runs < 3 || began.elapsed().as_secs_f64() < case.seconds / 10.0 {
            context.run(&inputs)?;
            runs += 1;
        }
        let rate = (rows * runs) as f64 / began.elapsed().as_secs_f64();
        println!(r#"{{"case":"{}, Context::run","rows":{rows},"rows_s":{rate:.1}}}"#, case.text());
        if rate > best.0 {
            best = (rate, rows);
        }
        if began.elapsed().as_secs_f64() > case.seconds {
            break;
        }
    }
    Ok(best.0)
}

/// Rows a second of clients that ask again as soon as they are answered.
fn closed(
    case: &Case,
    address: SocketAddr,
    requests: &Arc<Vec<Vec<u8>>>,
    seconds: f64,
) -> Outcome<f64> {
    let (done, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let clients: Vec<_> = (0..case.connections)
        .map(|number| {
            let (done, stop, requests) =
                (Arc::clone(&done), Arc::clone(&stop), Arc::clone(requests));
            thread::spawn(move || -> Outcome<()> {
                let mut connection = Connection::open(address)?;
                let mut next = number * 37;
                while !stop.load(Ordering::Relaxed) {
                    let (status, _) = connection.ask(&requests[next % requests.len()])?;
                    if status != 200 {
                        return Err(format!("status {status}").into());
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                    next += 1;
                }
                Ok(())
            })
        })
        .collect();
    // The first answers are of shapes that are bound.
    thread::sleep(Duration::from_secs_f64(seconds / 5.0));
    let (began, first) = (Instant::now(), done.load(Ordering::Relaxed));
    thread::sleep(Duration::from_secs_f64(seconds));
    let rate = (done.load(Ordering::Relaxed) - first) as f64 / began.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().map_err(|_| "a client panicked")??;
    }
    Ok(rate)
}

/// Latencies of requests that come at a rate, whether earlier ones are answered or not.
fn open(case: &Case, address: SocketAddr, requests: &Arc<Vec<Vec<u8>>>, rate: f64) -> Outcome<()> {
    let count = ((rate * case.seconds) as usize).max(1000);
    let (send, receive) = mpsc::channel::<(Instant, usize)>();
    let receive = Arc::new(std::sync::Mutex::new(receive));
    // As many as may be under way at a time.
    let clients: Vec<_> = (0..case.connections.max(256))
        .map(|_| {
            let (receive, requests) = (Arc::clone(&receive), Arc::clone(requests));
            thread::spawn(move || -> Outcome<Vec<f64>> {
                let mut connection = Connection::open(address)?;
                let mut times = Vec::new();
                loop {
                    let next = receive.lock().map_err(|_| "a client panicked")?.recv();
                    let Ok((due, number)) = next else { return Ok(times) };
                    let (status, _) = connection.ask(&requests[number % requests.len()])?;
                    if status != 200 {
                        return Err(format!("status {status}").into());
                    }
                    times.push(due.elapsed().as_secs_f64() * 1e3);
                }
            })
        })
        .collect();
    let mut random = Random(77);
    let mut due = Instant::now();
    let began = due;
    for number in 0..count {
        let gap = if case.steady { 1.0 } else { -random.part().ln() };
        due += Duration::from_secs_f64(gap / rate);
        thread::sleep(due.saturating_duration_since(Instant::now()));
        send.send((due, number))?;
    }
    drop(send);
    let mut times = Vec::with_capacity(count);
    for client in clients {
        times.extend(client.join().map_err(|_| "a client panicked")??);
    }
    let took = began.elapsed().as_secs_f64();
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    println!(
        r#"{{"case":"{}, {} arrivals","requests":{count},"asked_rows_s":{rate:.1},"rows_s":{:.1},"p50_ms":{:.2},"p99_ms":{:.2},"p99_over_p50":{:.2}}}"#,
        case.text(),
        if case.steady { "even" } else { "Poisson" },
        count as f64 / took,
        at(0.5),
        at(0.99),
        at(0.99) / at(0.5)
    );
    Ok(())
}
