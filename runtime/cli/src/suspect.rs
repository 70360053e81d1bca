//! What a file is that cannot be read as what it is taken for: the usual accidents, and models of other kinds.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Bytes of a file that are looked at.
const HEAD: u64 = 4096;

/// The beginning of a file.
struct Head {
    bytes: Vec<u8>,
    /// Bytes of the whole file.
    length: u64,
}

/// A kind of file that is taken for another: how it is known, what it is, and what to do.
struct Kind {
    is: fn(&Head) -> bool,
    /// Whether it is a model of another kind, or stands for one.
    of_model: bool,
    what: &'static str,
    advice: &'static str,
}

const KINDS: &[Kind] = &[
    Kind {
        is: |head| head.length == 0,
        of_model: false,
        what: "it is empty",
        advice: "copy or export it again",
    },
    Kind {
        is: |head| head.starts_with(b"version https://git-lfs.github.com/spec/"),
        of_model: true,
        what: "it is a git-LFS pointer, not the file itself",
        advice: "`git lfs pull` in its folder fetches it",
    },
    Kind {
        is: is_html,
        of_model: false,
        what: "it is an HTML page, as a download that failed leaves",
        advice: "download it again; Hugging Face has files at /resolve/ and their pages at /blob/",
    },
    Kind {
        is: |head| head.starts_with(b"\x1f\x8b\x08"),
        of_model: false,
        what: "it is packed by gzip",
        advice: "unpack it by gunzip",
    },
    Kind {
        is: is_zipped_checkpoint,
        of_model: true,
        what: "it is a PyTorch checkpoint (.pt), not ONNX",
        advice: "export the model by torch.onnx.export",
    },
    Kind {
        is: is_pickle,
        of_model: true,
        what: "it is a Python pickle, as older PyTorch checkpoints (.pt) are, not ONNX",
        advice: "export the model by torch.onnx.export",
    },
    Kind {
        is: is_safetensors,
        of_model: true,
        what: "it is a safetensors file, which has weights but no graph",
        advice: "export the model: `optimum-cli export onnx --model FOLDER OUT/`",
    },
    Kind {
        is: is_saved_model,
        of_model: true,
        what: "it is a TensorFlow SavedModel, not ONNX",
        advice: "`python -m tf2onnx.convert --saved-model FOLDER --output model.onnx` converts it",
    },
    Kind {
        is: |head| head.starts_with(b"\x89HDF\r\n\x1a\n"),
        of_model: true,
        what: "it is an HDF5 file, as Keras models (.h5) are, not ONNX",
        advice: "`model.export(\"model.onnx\", format=\"onnx\")` exports it",
    },
    Kind {
        is: |head| head.bytes.get(4..8) == Some(b"TFL3"),
        of_model: true,
        what: "it is a TensorFlow Lite model, not ONNX",
        advice: "`python -m tf2onnx.convert --tflite FILE --output model.onnx` converts it",
    },
    Kind {
        is: |head| head.bytes.get(4..8) == Some(b"ORTM"),
        of_model: true,
        what: "it is in onnxruntime's own format",
        advice: "give the .onnx file that it was made of",
    },
    Kind {
        is: |head| head.starts_with(b"GGUF"),
        of_model: true,
        what: "it is a GGUF file, as llama.cpp takes it, not ONNX",
        advice: "export the model that it was made of",
    },
    Kind {
        is: |head| head.starts_with(b"<?xml"),
        of_model: true,
        what: "it is XML, as OpenVINO's models are, not ONNX",
        advice: "give the .onnx file that it was made of",
    },
];

impl Head {
    fn read(path: &Path) -> Option<Self> {
        // Opening a pipe would take what is in it.
        let length = path.metadata().ok().filter(std::fs::Metadata::is_file)?.len();
        let mut bytes = Vec::new();
        File::open(path).ok()?.take(HEAD).read_to_end(&mut bytes).ok()?;
        Some(Self { bytes, length })
    }

    fn starts_with(&self, beginning: &[u8]) -> bool {
        self.bytes.starts_with(beginning)
    }
}

/// What a file is instead of what it is taken for, and what to do, where its beginning tells.
pub(crate) fn cause(path: &Path) -> Option<String> {
    kind(path).map(|kind| format!("{}; {}", kind.what, kind.advice))
}

/// The same of a model of another kind, or what stands for one.
pub(crate) fn other_model(path: &Path) -> Option<String> {
    cause(path).filter(|_| kind(path).is_some_and(|kind| kind.of_model))
}

fn kind(path: &Path) -> Option<&'static Kind> {
    let head = Head::read(path)?;
    KINDS.iter().find(|kind| (kind.is)(&head))
}

/// Why a file is no ONNX model: what it is instead, or that its end is missing, or no more than that it is none.
pub(crate) fn no_model(path: &Path) -> String {
    let cut = || {
        let missing = missing(path)?;
        let bytes = crate::human::bytes(missing);
        Some(format!(
            "it is truncated, at least {bytes} are missing at its end; copy or download it again"
        ))
    };
    let look = || {
        let head = Head::read(path)?;
        let is_text = |byte: &u8| matches!(byte, b'\t' | b'\n' | b'\r' | b' '..=b'~' | 0x80..);
        match head.starts_with(b"PK\x03\x04") {
            true => Some("it is a zip archive; unpack it"),
            false => head.bytes.iter().all(is_text).then_some("it is a text file"),
        }
    };
    let look = || Some(look()?.to_owned());
    let other = || "its bytes are of another format".to_owned();
    cause(path).or_else(cut).or_else(look).unwrap_or_else(other)
}

fn is_html(head: &Head) -> bool {
    let text = String::from_utf8_lossy(&head.bytes).trim_start().to_ascii_lowercase();
    text.starts_with("<!doctype html") || text.starts_with("<html")
}

/// A protocol's version from 2 to 5, and then no text.
fn is_pickle(head: &Head) -> bool {
    matches!(head.bytes[..], [0x80, 2..=5, ..])
}

/// A zip archive whose first file is in a folder of PyTorch's: `archive/data.pkl` or what lies beside it.
fn is_zipped_checkpoint(head: &Head) -> bool {
    let length = head.bytes.get(26..28).map(|size| u16::from_le_bytes([size[0], size[1]]));
    let name = length.and_then(|length| head.bytes.get(30..30 + usize::from(length)));
    let ends = ["/data.pkl", "/version", "/byteorder", "/.format_version"];
    let is_of_torch = |name: &[u8]| ends.iter().any(|end| name.ends_with(end.as_bytes()));
    head.starts_with(b"PK\x03\x04") && name.is_some_and(is_of_torch)
}

/// Eight bytes say how long the JSON is that follows them.
fn is_safetensors(head: &Head) -> bool {
    let Some((length, rest)) = head.bytes.split_first_chunk::<8>() else { return false };
    u64::from_le_bytes(*length) < head.length && rest.starts_with(b"{")
}

/// A schema's version, which is 1, and then a message whose first field is one; ONNX has a text there.
fn is_saved_model(head: &Head) -> bool {
    let Some(rest) = head.bytes.strip_prefix(b"\x08\x01\x12") else { return false };
    let length = rest.iter().position(|byte| byte & 0x80 == 0);
    length.is_some_and(|end| rest.get(end + 1) == Some(&b'\n'))
}

/// Bytes that the fields of a protobuf message have beyond the end of its file, if all before is in order.
fn missing(path: &Path) -> Option<u64> {
    /// Fields of a model have no larger numbers.
    const FIELDS: u64 = 64;
    let mut file = File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    let mut at = 0;
    while at < length {
        let (tag, size) = varint(&mut file)?;
        at += size;
        if !(1..FIELDS).contains(&(tag >> 3)) {
            return None;
        }
        let size = match tag & 7 {
            0 => varint(&mut file)?.1,
            1 => 8,
            5 => 4,
            2 => {
                let (size, own) = varint(&mut file)?;
                own.checked_add(size)?
            }
            _ => return None,
        };
        at = at.checked_add(size)?;
        file.seek(SeekFrom::Start(at)).ok()?;
    }
    Some(at - length).filter(|missing| *missing > 0)
}

/// A number of seven bits a byte, and how many bytes it takes.
fn varint(file: &mut File) -> Option<(u64, u64)> {
    let mut number = 0;
    for size in 0..10 {
        let mut byte = [0];
        file.read_exact(&mut byte).ok()?;
        number |= u64::from(byte[0] & 0x7f) << (7 * size);
        if byte[0] & 0x80 == 0 {
            return Some((number, size + 1));
        }
    }
    None
}
