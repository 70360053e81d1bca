//! `--save-intermediates`: what every step of a run writes, by the names of the values.

use crate::bisect::{Inspected, places};
use crate::error::Error;
use crate::files;
use crate::npy::{Archive, npy_bytes};
use graphene_frontend::tensor::Tensor;
use graphene_fusion::program::{BufferId, Program, StepId};
use graphene_runtime::Plan;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Where values go.
enum Sink {
    /// Into an archive.
    Archive(Archive),
    /// Into a folder, a file each.
    Folder(PathBuf),
}

/// Whether a path names an archive; others are folders.
pub(crate) fn is_archive(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("npz"))
}

/// Whether values can be saved there, before any is computed; a folder is made.
///
/// # Errors
/// [`Error::Write`] if not.
pub(crate) fn probe(path: &Path) -> Result<(), Error> {
    if is_archive(path) { files::probe(path) } else { files::probe_folder(path) }
}

/// Runs once, step by step, and saves what each step writes.
///
/// # Errors
/// [`Error::Write`] and [`Error::Npy`]; `refused` of what the run says.
pub(crate) fn save(
    executable: &mut impl Inspected,
    program: &Program,
    inputs: &[Tensor],
    path: &Path,
    refused: impl FnOnce(graphene_runtime::Error) -> Error,
) -> Result<(), Error> {
    let mut sink = match is_archive(path) {
        true => Sink::Archive(Archive::new()),
        false => Sink::Folder(path.to_owned()),
    };
    let (plan, mut names, mut failed) = (executable.plan().clone(), BTreeSet::new(), None);
    let ran = executable.run(inputs, |step, buffer, bytes| {
        let Some(tensor) = value(&plan, step, buffer, bytes).filter(|_| failed.is_none()) else {
            return;
        };
        let name = unlike(&mut names, sink.named(&program.buffer(buffer).name), step);
        failed = sink.add(&name, tensor).err();
    });
    ran.map_err(refused)?;
    failed.map_or(Ok(()), Err)?;
    match sink {
        Sink::Archive(archive) => {
            let npy = |source| Error::Npy { path: path.to_owned(), source };
            files::write(path, &archive.bytes().map_err(npy)?)
        }
        Sink::Folder(folder) => {
            let values = crate::human::counted(names.len(), "value", "values");
            files::complain(&format!("wrote {values} to {}", folder.display()));
            Ok(())
        }
    }
}

impl Sink {
    /// What a value of this name is called there.
    fn named(&self, name: &str) -> String {
        match self {
            Self::Archive(_) => name.to_owned(),
            Self::Folder(_) => file_name(name),
        }
    }

    fn add(&mut self, name: &str, tensor: Tensor) -> Result<(), Error> {
        match self {
            Self::Archive(archive) => {
                let path = PathBuf::from(name);
                archive.add(name, &tensor).map_err(|source| Error::Npy { path, source })
            }
            Self::Folder(folder) => {
                let path = folder.join(format!("{name}.npy"));
                let bytes = npy_bytes(&tensor);
                let bytes = bytes.map_err(|source| Error::Npy { path: path.clone(), source })?;
                files::replace(&path, &bytes)
            }
        }
    }
}

/// What a step wrote to a buffer, row-major as the step sees it.
fn value(plan: &Plan, step: usize, buffer: BufferId, bytes: Vec<u8>) -> Option<Tensor> {
    let operand = plan.steps().get(step)?.outputs.iter().find(|out| out.buffer == buffer)?;
    let dtype = plan.buffers().get(buffer.index())?.dtype;
    let (size, count) = (dtype.size(), operand.shape.iter().product::<usize>());
    let mut elements = Vec::with_capacity(count * size);
    for place in places(operand) {
        elements.extend_from_slice(bytes.get(place * size..(place + 1) * size)?);
    }
    Tensor::new(dtype, operand.shape.clone(), elements.into()).ok()
}

/// The value's name, or with the step's number if another has it: a value that is written in parts, or copied.
fn unlike(names: &mut BTreeSet<String>, name: String, step: usize) -> String {
    let mut unlike = name.clone();
    let mut again = 1;
    while !names.insert(unlike.clone()) {
        let step = StepId::from_index(step);
        unlike = if again == 1 { format!("{name}{step}") } else { format!("{name}{step}.{again}") };
        again += 1;
    }
    unlike
}

/// A name as that of a file: `/encoder/layer.0/MatMul` is `encoder.layer.0.MatMul`. What a system or a shell takes for
/// something else is an underscore.
fn file_name(name: &str) -> String {
    const MOST: usize = 200;
    let plain = |c: char| if c.is_alphanumeric() || "._-#".contains(c) { c } else { '_' };
    let name: String = name.trim_matches('/').replace('/', ".").chars().map(plain).collect();
    // A name of points alone leads elsewhere, and one that begins with one is hidden.
    let name = name.trim_start_matches('.');
    let mut end = name.len().min(MOST);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    if end == 0 { "_".to_owned() } else { name[..end].to_owned() }
}

#[cfg(test)]
mod tests {
    use super::{file_name, unlike};
    use std::collections::BTreeSet;

    #[test]
    fn names_stay_in_their_folder() {
        let rows = [
            ("/encoder/layer.0/MatMul", "encoder.layer.0.MatMul"),
            ("../../etc/passwd", "etc.passwd"),
            ("..", "_"),
            ("", "_"),
            ("/", "_"),
            ("a b\\c:d*", "a_b_c_d_"),
            (r"\u{1b}]0;", "_u_1b__0_"),
            ("größe", "größe"),
        ];
        for (name, expected) in rows {
            assert_eq!(file_name(name), expected, "{name}");
        }
        assert_eq!(file_name(&"ä".repeat(300)).chars().count(), 100);
    }

    #[test]
    fn names_that_come_again_have_a_number() {
        let mut names = BTreeSet::new();
        let mut add = |step| unlike(&mut names, "x".to_owned(), step);
        assert_eq!([add(0), add(3), add(3), add(4)], ["x", "x#3", "x#3.2", "x#4"]);
    }
}
