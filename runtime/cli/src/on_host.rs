//! Steps of GPU programs that fall back to the CPU: what reports say of them.

use graphene_fusion::kernels::launches;
use graphene_fusion::program::{Program, Step};
use graphene_ir::target::{Kind, Target};
use graphene_runtime::gpu::routine;
use serde::Serialize;

/// A step that falls back to the CPU.
#[derive(Serialize, Debug, Clone, PartialEq, Eq)]
pub(crate) struct OnHost {
    /// Its name.
    pub(crate) step: String,
    /// Why no kernel computes it.
    pub(crate) why: String,
}

/// What to say of the steps of a program that have no kernel on a GPU target, if there are any.
pub(crate) fn without_kernels(program: &Program, target: &Target) -> Option<String> {
    if target.kind == Kind::Cpu {
        return None;
    }
    let refused = |step: &Step| {
        let why = refusal(program, step, target)?;
        Some(OnHost { step: step.name.clone(), why })
    };
    let refused: Vec<OnHost> = program.steps().iter().filter_map(refused).collect();
    let said = said(&refused)?;
    Some(format!("no kernel on {target}, would fall back to the CPU: {said}"))
}

/// Why each step of a program would fall back to the CPU on a target, if it would.
pub(crate) fn refusals(program: &Program, target: &Target) -> Vec<Option<String>> {
    let refusal = |step| match target.kind {
        Kind::Cpu => None,
        Kind::Cuda { .. } => refusal(program, step, target),
    };
    program.steps().iter().map(refusal).collect()
}

/// Why neither a kernel nor a library computes a step on a GPU target, if so.
pub(crate) fn refusal(program: &Program, step: &Step, target: &Target) -> Option<String> {
    match routine(program, step, target) {
        Some(_) => None,
        None => launches(program, step, target).err().map(|refusal| refusal.in_short()),
    }
}

/// The first of them, and how many more there are.
pub(crate) fn said(steps: &[OnHost]) -> Option<String> {
    let OnHost { step, why } = steps.first()?;
    let more = match steps.len() - 1 {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    Some(format!("{step} ({why}){more}"))
}

#[cfg(test)]
mod tests {
    use super::without_kernels;
    use graphene_frontend::dim::Bindings;
    use graphene_frontend::text::parse;
    use graphene_fusion::{Granularity, plan};
    use graphene_ir::target::Target;

    fn said(text: &str, target: &str) -> Option<String> {
        let (graph, target) = (parse(text, &[]).unwrap(), target.parse::<Target>().unwrap());
        let planned = plan(&graph, &target, Granularity::Fused, &Bindings::new()).unwrap();
        without_kernels(&planned.program, &target)
    }

    #[test]
    fn steps_without_kernels_are_told_with_the_reason() {
        let of = |dtype: &str| {
            format!(
                "symbols n\n%0 = Input : {dtype}[n] \"x\"\n%1 = Add(%0, %0) : {dtype}[n] \"y\"\n\
                 return \"y\" = %1\n"
            )
        };
        let why = "no kernel on sm_90a, would fall back to the CPU: Add (y) (no template computes with f64)";
        assert_eq!(said(&of("f64"), "sm_90a").as_deref(), Some(why));
        assert_eq!(said(&of("f32"), "sm_90a"), None);
        assert_eq!(said(&of("f64"), "cpu"), None);
    }
}
