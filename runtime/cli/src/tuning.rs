//! The file that keeps what tuning found: it stands beside the model, and later runs take what is in it.
//!
//! It holds for each GPU, by name and architecture, an entry for each group of equal steps at some sizes. It is written anew,
//! whole, after each part of a search, so that one that is killed goes on where it was.

use crate::args::Arguments;
use crate::error::Error;
use crate::files;
use graphene_fusion::tuning::{Choice, Parameters};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The version of the layout below.
const FORMAT: u32 = 2;
/// The prefix of the zoo's models, which have no file.
const ZOO: &str = "zoo:";

/// What was found for one GPU, with the file that it is kept in.
#[derive(Debug)]
pub(crate) struct Tuning {
    path: PathBuf,
    /// The GPU's name and architecture.
    device: String,
    file: File,
}

/// The file.
#[derive(Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct File {
    format: u32,
    devices: BTreeMap<String, Vec<Entry>>,
}

/// What was found for the steps of one kind at some sizes.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    /// Which steps it is for: [`graphene_fusion::tuning::fingerprint`].
    pub(crate) step: String,
    /// Their operations, for readers.
    pub(crate) operations: String,
    /// The sizes of the model's dims.
    pub(crate) sizes: BTreeMap<String, i64>,
    /// The fastest parameters; none if none is faster than what the step takes without.
    pub(crate) parameters: Option<String>,
    /// Microseconds of one launch with them.
    pub(crate) us: f64,
    /// Microseconds of one launch without.
    pub(crate) default_us: f64,
    /// How many candidates were tried.
    pub(crate) tried: usize,
    /// How many there are.
    pub(crate) of: usize,
}

/// The file that the command line names, or the model's own.
pub(crate) fn path(arguments: &Arguments) -> PathBuf {
    let own = || path_of(arguments.model.as_deref().unwrap_or_default());
    arguments.run.tuning.clone().unwrap_or_else(own)
}

/// The file of a model: `m.tuning.json` beside `m.onnx`, `bert-base.tuning.json` in this folder for `zoo:bert-base`.
fn path_of(model: &str) -> PathBuf {
    match model.strip_prefix(ZOO) {
        Some(name) => PathBuf::from(format!("{name}.tuning.json")),
        None => Path::new(model).with_extension("tuning.json"),
    }
}

impl Tuning {
    /// What a file has for a GPU of this name and architecture; a file that is not there has nothing.
    ///
    /// # Errors
    /// [`Error::Tuning`] for a file that cannot be read or is damaged.
    pub(crate) fn open(path: PathBuf, device: String) -> Result<Self, Error> {
        let file = match std::fs::read_to_string(&path) {
            Ok(text) => {
                parse(&text).map_err(|reason| Error::Tuning { path: path.clone(), reason })?
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                File { format: FORMAT, devices: BTreeMap::new() }
            }
            Err(error) => return Err(Error::Tuning { path, reason: error.to_string() }),
        };
        Ok(Self { path, device, file })
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What was found.
    pub(crate) fn entries(&self) -> &[Entry] {
        self.file.devices.get(&self.device).map_or(&[], Vec::as_slice)
    }

    /// What was found for a step at these sizes.
    pub(crate) fn entry(&self, step: &str, sizes: &BTreeMap<String, i64>) -> Option<&Entry> {
        self.entries().iter().find(|entry| entry.step == step && entry.sizes == *sizes)
    }

    /// What a program's steps may take.
    pub(crate) fn choices(&self) -> Vec<Choice> {
        let choice = |entry: &Entry| {
            // Reading has checked that they are some.
            let parameters = entry.parameters.as_ref()?.parse().ok()?;
            let (fingerprint, sizes) = (entry.step.clone(), entry.sizes.clone());
            Some(Choice { fingerprint, sizes, parameters })
        };
        self.entries().iter().filter_map(choice).collect()
    }

    /// Keeps an entry in the place of an earlier one for the same steps and sizes, and writes the file.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub(crate) fn keep(&mut self, entry: Entry) -> Result<(), Error> {
        let entries = self.file.devices.entry(self.device.clone()).or_default();
        let same = |old: &Entry| old.step == entry.step && old.sizes == entry.sizes;
        match entries.iter_mut().find(|old| same(old)) {
            Some(old) => *old = entry,
            None => entries.push(entry),
        }
        let text = serde_json::to_string_pretty(&self.file);
        let text = text.expect("maps have strings for keys, and nothing else can fail") + "\n";
        files::replace(&self.path, text.as_bytes())
    }
}

fn parse(text: &str) -> Result<File, String> {
    let file: File = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if file.format != FORMAT {
        return Err(format!("it has format {}, and this version reads {FORMAT}", file.format));
    }
    for entry in file.devices.values().flatten() {
        if let Some(parameters) = &entry.parameters {
            parameters.parse::<Parameters>().map_err(|error| error.to_string())?;
        }
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::{Entry, Tuning, path_of};
    use std::path::{Path, PathBuf};

    fn entry(step: &str, parameters: Option<&str>) -> Entry {
        Entry {
            step: step.to_owned(),
            operations: "MatMul+Add".to_owned(),
            sizes: [("batch".to_owned(), 2)].into(),
            parameters: parameters.map(str::to_owned),
            us: 1.5,
            default_us: 2.0,
            tried: 3,
            of: 9,
        }
    }

    /// A file of its own, removed at the end.
    struct Temporary(PathBuf);

    impl Temporary {
        fn new(name: &str) -> Self {
            let name = format!("graphene-{name}-{}.tuning.json", std::process::id());
            Self(std::env::temp_dir().join(name))
        }
    }

    impl Drop for Temporary {
        fn drop(&mut self) {
            // What cannot be removed is left to the system.
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn files_stand_beside_models() {
        assert_eq!(path_of("zoo:bert-base"), Path::new("bert-base.tuning.json"));
        assert_eq!(path_of("a/b.onnx"), Path::new("a/b.tuning.json"));
    }

    #[test]
    fn what_is_kept_is_there_for_its_device_alone() {
        let file = Temporary::new("kept");
        let open = |device: &str| Tuning::open(file.0.clone(), device.to_owned()).unwrap();
        let fmha = "fmha consumers=2 keys=96 stages=2";
        let mut one = open("A sm_90a");
        assert!(one.entries().is_empty());
        one.keep(entry("1", None)).unwrap();
        one.keep(entry("2", Some(fmha))).unwrap();
        one.keep(Entry { tried: 9, ..entry("1", Some(fmha)) }).unwrap();
        open("B sm_90a").keep(entry("3", None)).unwrap();
        let again = open("A sm_90a");
        let found: Vec<_> = again.entries().iter().map(|e| (e.step.as_str(), e.tried)).collect();
        assert_eq!(found, [("1", 9), ("2", 3)]);
        assert_eq!(again.choices().len(), 2);
        assert_eq!(again.choices()[1].parameters.to_string(), fmha);
        assert_eq!(
            again.entry("2", &[("batch".to_owned(), 2)].into()),
            Some(&entry("2", Some(fmha)))
        );
        assert_eq!(again.entry("2", &[("batch".to_owned(), 3)].into()), None);
        assert_eq!(open("B sm_90a").entries(), [entry("3", None)]);
        assert!(open("B sm_90a").choices().is_empty());
    }

    #[test]
    fn damaged_files_are_named() {
        let file = Temporary::new("damaged");
        let rows = [
            ("{", "EOF while parsing"),
            ("{\"format\": 1, \"devices\": {}}", "it has format 1, and this version reads 2"),
            ("{\"format\": 2, \"devices\": {}, \"more\": 1}", "unknown field `more`"),
            (
                "{\"format\": 2, \"devices\": {\"d\": [{\"step\": \"1\", \"operations\": \"\", \"sizes\": {}, \
                 \"parameters\": \"fmha keys=1\", \"us\": 1, \"default_us\": 1, \"tried\": 0, \"of\": 0}]}}",
                "`fmha keys=1` are no parameters of a template",
            ),
        ];
        for (text, reason) in rows {
            std::fs::write(&file.0, text).unwrap();
            let error = Tuning::open(file.0.clone(), "d".to_owned()).unwrap_err();
            let (shown, name) = (error.to_string(), file.0.display().to_string());
            assert!(shown.contains(reason) && shown.contains(&name), "{shown}");
            assert_eq!(error.code(), 2);
        }
    }
}
