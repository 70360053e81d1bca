//! Models of the zoo on an engine, and requests for them.

use graphene_models::{Options, build};
use graphene_runtime::{
    Bindings, Context, Device, Engine, Input, Model, ModelBuilder, Result, Source, Tensor,
};

/// An engine on the host's cores.
pub(crate) fn engine() -> Engine {
    Engine::builder().device(Device::Cpu).threads(2).build().unwrap()
}

/// Where a model of the zoo comes from.
pub(crate) fn source(name: &str) -> Source {
    let model = build(name, &Options::default()).unwrap();
    let encoded = model.encode();
    Source::with_external(encoded, model.into_parts().1)
}

/// A model of the zoo, with settings.
pub(crate) fn load(
    engine: &Engine,
    name: &str,
    with: impl FnOnce(ModelBuilder) -> ModelBuilder,
) -> Model {
    with(engine.model()).load_from(&source(name)).unwrap()
}

/// Numbers from a seed (splitmix64).
#[derive(Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

/// Random inputs of a model at sizes by name: token ids and masks for whole numbers, else numbers in -1 to 1.
pub(crate) fn inputs(model: &Model, sizes: &[(&str, usize)], random: &mut Random) -> Vec<Tensor> {
    let mut bindings = Bindings::new();
    for (name, size) in sizes {
        let symbol = graphene_frontend::dim::Symbol::new(name);
        bindings.bind(symbol, i64::try_from(*size).unwrap()).unwrap();
    }
    let input = |port: &graphene_runtime::Port| {
        let shape = port.dims().iter().map(|dim| dim.eval(&bindings).unwrap() as usize);
        let shape: Vec<usize> = shape.collect();
        let n: usize = shape.iter().product();
        match port.dtype() {
            graphene_runtime::DType::I64 => {
                let below = if port.name() == "input_ids" { 1000 } else { 2 };
                let mut ids: Vec<i64> = (0..n).map(|_| random.below(below) as i64).collect();
                // A row of a mask has a one.
                if port.name() == "attention_mask" {
                    ids.iter_mut().for_each(|id| *id = 1);
                }
                Tensor::from_vec(shape, ids).unwrap()
            }
            _ => {
                let number = |_| random.below(2001) as f32 / 1000.0 - 1.0;
                Tensor::from_vec(shape, (0..n).map(number).collect::<Vec<f32>>()).unwrap()
            }
        }
    };
    model.inputs().iter().map(input).collect()
}

/// A run's outputs.
pub(crate) fn run(context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let inputs: Vec<Input<'_>> = inputs.iter().map(Input::from).collect();
    Ok(context.run(&inputs)?.into_iter().collect())
}
