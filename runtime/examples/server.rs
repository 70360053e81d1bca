//! Serves a model by HTTP: `server MODEL.onnx ADDRESS`, or the zoo's bert-base-tiny at a port that is free.
//! `curl --json '{"input_ids": {"shape": [1, 3], "data": [101, 7592, 102]}, …}' ADDRESS/run`

use axum::{Json, Router, extract::State, http::StatusCode, routing::post};
use graphene_models::build;
use graphene_runtime::{
    DType, Engine, Error, ErrorKind, Pool, Request, RunOptions, Source, Tensor,
};
use std::time::{Duration, Instant};

type Arrays = std::collections::BTreeMap<String, Array>;

#[derive(serde::Deserialize, serde::Serialize)]
struct Array {
    shape: Vec<usize>,
    data: Vec<f64>,
}

async fn run(State(pool): State<Pool>, Json(arrays): Json<Arrays>) -> Result<Json<Arrays>, Error> {
    let mut request = Request::new();
    for (name, Array { shape, data }) in arrays {
        let port = pool.model().inputs().iter().find(|port| port.name() == name);
        let tensor = match port.map(|port| port.dtype()) {
            Some(DType::I64) => Tensor::from_vec(shape, data.iter().map(|&x| x as i64).collect())?,
            _ => Tensor::from_vec(shape, data.iter().map(|&x| x as f32).collect())?,
        };
        request = request.named(&name, tensor);
    }
    let options = RunOptions::new().deadline(Instant::now() + Duration::from_secs(10));
    let outputs = pool.submit(request, &options)?.await?;
    let arrays = outputs.iter().map(|(name, tensor)| {
        let data = outputs.to_vec::<f32>(name)?.into_iter().map(f64::from).collect();
        Ok((name.to_owned(), Array { shape: tensor.shape().to_vec(), data }))
    });
    arrays.collect::<Result<_, Error>>().map(Json)
}

fn refused(error: Error) -> (StatusCode, String) {
    let status = match error.kind() {
        ErrorKind::Request => StatusCode::BAD_REQUEST,
        ErrorKind::Limit => StatusCode::PAYLOAD_TOO_LARGE,
        ErrorKind::Busy => StatusCode::TOO_MANY_REQUESTS,
        ErrorKind::Deadline => StatusCode::GATEWAY_TIMEOUT,
        ErrorKind::Device => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, error.to_string())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let builder = Engine::new()?.model();
    let model = match std::env::args().nth(1) {
        Some(path) => builder.load(path)?,
        None => {
            let zoo = build("bert-base-tiny", &<_>::default())?;
            builder.load_from(&Source::with_external(zoo.encode(), zoo.weights().clone()))?
        }
    };
    let pool = Pool::builder(&model).contexts(2).queue(64).build()?;
    let address = std::env::args().nth(2).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("http://{}/run", listener.local_addr()?);
    let routes = post(|state, body| async { run(state, body).await.map_err(refused) });
    Ok(axum::serve(listener, Router::new().route("/run", routes).with_state(pool)).await?)
}
