//! Every atom on the device against its meaning: the kernels that try them are simulated, and run.

use std::collections::BTreeMap;

use graphene_ir::arch::Arch;
use graphene_ir::atom;
use graphene_ir::emit::emit;
use graphene_ir::kernel::Kernel;
use graphene_ir::simulate::{self, Inputs, simulate};
use graphene_ir::tensor::Scalar;
use graphene_ir::text::parse_all;
use graphene_runtime::Error;
use graphene_runtime::device::{Buffer, Stream, compile};

use crate::data::{Random, decode, encode};
use crate::matmuls::kernel_error;

/// The largest difference that the units for special functions may make, relative to the value;
/// everything else is exact on the examples' numbers.
const SPECIAL: f64 = 4e-6;

/// The kernels that try the atoms.
const FILES: [&str; 8] = [
    include_str!("../../../../graphene/tests/atoms/barrier.graphene"),
    include_str!("../../../../graphene/tests/atoms/bulk.graphene"),
    include_str!("../../../../graphene/tests/atoms/cluster.graphene"),
    include_str!("../../../../graphene/tests/atoms/math.graphene"),
    include_str!("../../../../graphene/tests/atoms/matrix.graphene"),
    include_str!("../../../../graphene/tests/atoms/moves.graphene"),
    include_str!("../../../../graphene/tests/atoms/quad.graphene"),
    include_str!("../../../../graphene/tests/atoms/wgmma.graphene"),
];

pub(crate) fn check(stream: &Stream) -> Result<usize, Error> {
    let own = stream.device().properties().arch();
    let mut wrong = 0;
    for text in FILES {
        for kernel in parse_all(text).map_err(kernel_error)? {
            let name = kernel.name.clone();
            let outcome = try_one(stream, kernel, own);
            let (result, detail) = match &outcome {
                Ok(None) => ("right", String::new()),
                Ok(Some(difference)) => ("wrong", difference.clone()),
                Err(error) => ("failed", error.to_string()),
            };
            if result != "right" {
                wrong += 1;
                eprintln!("{name}: {result}: {detail}");
            }
            println!("{{\"row\":\"atoms\",\"kernel\":\"{name}\",\"result\":\"{result}\"}}");
        }
    }
    Ok(wrong)
}

/// The first difference between the device's outputs and the simulation's.
fn try_one(
    stream: &Stream,
    mut kernel: Kernel,
    own: Option<Arch>,
) -> Result<Option<String>, Error> {
    let said = |error: graphene_ir::Error| Some(error.to_string());
    // The device's own architecture may have what the example's has.
    let needs = match atom::features(&kernel) {
        Ok(needs) => needs,
        Err(error) => return Ok(said(error)),
    };
    if let Some(own) = own.filter(|own| own.needs(&needs).is_ok()) {
        kernel.arch = own;
    }
    let mut random = Random(1);
    let mut inputs = Inputs::default();
    let mut scalars: BTreeMap<String, Scalar> = BTreeMap::new();
    for &param in &kernel.params {
        let tensor = kernel.tensor(param);
        let len = tensor.view.cosize().unwrap_or(0) as usize;
        let name = kernel.tensor_name(param).to_owned();
        let data = random.elements(len, tensor.scalar);
        inputs.buffers.insert(name.clone(), simulate::Buffer::Data(data));
        scalars.insert(name, tensor.scalar);
    }
    let expected = match simulate(&kernel, &inputs, &simulate::Options::default()) {
        Ok(outcome) if outcome.findings.is_empty() => outcome.buffers,
        Ok(outcome) => return Ok(Some(format!("{:?}", outcome.findings[0]))),
        Err(error) => return Ok(said(error)),
    };
    let emitted = match emit(&kernel) {
        Ok(emitted) => emitted,
        Err(error) => return Ok(said(error)),
    };
    let cubin = compile(&emitted.source, kernel.arch, &kernel.name)?;
    let loaded = stream.device().load(&cubin, &emitted.launch)?;
    let mut buffers: Vec<(&str, Buffer)> = Vec::new();
    for (name, buffer) in &inputs.buffers {
        if let simulate::Buffer::Data(data) = buffer {
            buffers.push((name, stream.upload(&encode(data, scalars[name]))?));
        }
    }
    let given: Vec<(&str, &Buffer)> =
        buffers.iter().map(|(name, buffer)| (*name, buffer)).collect();
    loaded.bind(stream, &given, &[])?.launch()?;
    stream.synchronize()?;
    for (name, buffer) in &buffers {
        let found = decode(&buffer.download()?, scalars[*name]);
        for (i, (found, expected)) in found.iter().zip(&expected[*name]).enumerate() {
            let Some(expected) = *expected else { continue };
            let equal = *found == expected || (found.is_nan() && expected.is_nan());
            if !equal && (found - expected).abs() > SPECIAL * expected.abs().max(1e-3) {
                return Ok(Some(format!("%{name}[{i}] is {found}, its meaning is {expected}")));
            }
        }
    }
    Ok(None)
}
