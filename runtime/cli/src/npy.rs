//! Tensors in NumPy's files: `.npy`, and `.npz` archives of them.
//!
//! The format is that of `numpy.lib.format`, versions 1 to 3. A header says how large a tensor is before its
//! elements are read, and is believed only as far as the file is long enough to hold them.

use bytes::Bytes;
use graphene_frontend::dtype::DType;
use graphene_frontend::tensor::{Tensor, TensorError, checked_elements};
use graphene_frontend::visible::visible;
use std::io::{Cursor, Read, Seek, Write};
use std::path::Path;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// No header of a plain array is longer, in bytes.
const MAX_HEADER: usize = 1 << 16;
/// Deflate makes at most this many bytes of one (RFC 1951: 258 bytes for two bits).
const MAX_EXPANSION: u64 = 1032;

/// Why a file gives no tensor.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NpyError {
    /// The file cannot be read or written.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The archive is damaged or uses what is not supported.
    #[error("not a readable .npz archive: {0}")]
    Zip(#[from] zip::result::ZipError),
    /// It does not begin as a `.npy` file does.
    #[error("not a .npy file")]
    Magic,
    /// A version that NumPy has not defined.
    #[error(".npy version {0}.{1} is not known")]
    Version(u8, u8),
    /// The header is not the dictionary that it should be.
    #[error("the header is malformed: {0}")]
    Header(&'static str),
    /// Elements that no tensor has, for example strings or complex numbers.
    #[error("elements of NumPy type `{0}` are not supported")]
    Elements(String),
    /// There are fewer or more bytes than the header asks for.
    #[error("the header asks for {expected} bytes of elements, the file has {found}")]
    Length {
        /// What type and shape take.
        expected: u64,
        /// What there is, or can be at most.
        found: u64,
    },
    /// Type and shape make no tensor.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A truth value that is neither 0 nor 1.
    #[error("a truth value is {0}, neither 0 nor 1")]
    Bool(u8),
    /// An archive holds something that fails to be read.
    #[error("entry `{entry}`: {reason}")]
    Entry {
        /// The entry's name.
        entry: String,
        /// What is wrong with it.
        reason: Box<NpyError>,
    },
    /// The archive has two entries of one name.
    #[error("two entries are named `{0}`")]
    Duplicate(String),
}

impl NpyError {
    /// Whether it is the system that does not let the file be read or written.
    pub(crate) fn is_io(&self) -> bool {
        matches!(self, Self::Io(error) if error.raw_os_error().is_some())
    }
}

/// NumPy's code for a type, without byte order; NumPy itself has no `bf16`, ml_dtypes writes it as two bytes.
const CODES: [(&str, DType); 13] = [
    ("f4", DType::F32),
    ("f8", DType::F64),
    ("f2", DType::F16),
    ("V2", DType::BF16),
    ("i1", DType::I8),
    ("i2", DType::I16),
    ("i4", DType::I32),
    ("i8", DType::I64),
    ("u1", DType::U8),
    ("u2", DType::U16),
    ("u4", DType::U32),
    ("u8", DType::U64),
    ("b1", DType::Bool),
];

/// Reads a `.npy` file.
pub(crate) fn read_npy(path: &Path) -> Result<Tensor, NpyError> {
    let mut file = std::fs::File::open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() && !metadata.is_dir() {
        // A pipe says not how long it is.
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        return read_from(&mut Cursor::new(&bytes), bytes.len() as u64);
    }
    read_from(&mut std::io::BufReader::new(file), metadata.len())
}

/// Reads all tensors of a `.npz` archive, in its order.
pub(crate) fn read_npz(path: &Path) -> Result<Vec<(String, Tensor)>, NpyError> {
    read_archive(std::io::BufReader::new(std::fs::File::open(path)?))
}

fn read_archive(file: impl Read + Seek) -> Result<Vec<(String, Tensor)>, NpyError> {
    let mut archive = ZipArchive::new(file)?;
    let mut tensors: Vec<(String, Tensor)> = Vec::new();
    for i in 0..archive.len() {
        let mut entry = archive.by_index(i)?;
        let name = entry.name()?.into_owned();
        // As names in models are.
        let name = visible(name.strip_suffix(".npy").unwrap_or(&name)).into_owned();
        if tensors.iter().any(|(known, _)| *known == name) {
            return Err(NpyError::Duplicate(name));
        }
        // The size that the archive states is not to be trusted, the bytes that it takes are.
        let most = entry.compressed_size().saturating_mul(MAX_EXPANSION).saturating_add(64);
        let length = entry.size().min(most);
        let tensor = read_from(&mut entry, length).and_then(|tensor| {
            // The archive's checksum is compared where the entry ends.
            std::io::copy(&mut entry, &mut std::io::sink())?;
            Ok(tensor)
        });
        let tensor =
            tensor.map_err(|e| NpyError::Entry { entry: name.clone(), reason: Box::new(e) })?;
        tensors.push((name, tensor));
    }
    Ok(tensors)
}

/// Reads a tensor from a stream of `length` bytes.
fn read_from(source: &mut impl Read, length: u64) -> Result<Tensor, NpyError> {
    let mut start = [0; 8];
    source.read_exact(&mut start).map_err(|_| NpyError::Magic)?;
    let (magic, version) = start.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err(NpyError::Magic);
    }
    let width = match version {
        [1, 0] => 2,
        [2 | 3, 0] => 4,
        _ => return Err(NpyError::Version(version[0], version[1])),
    };
    let mut header_length = [0; 4];
    let cut = |_| NpyError::Header("it is cut short");
    source.read_exact(&mut header_length[..width]).map_err(cut)?;
    let header_length = u32::from_le_bytes(header_length) as usize;
    if header_length > MAX_HEADER {
        return Err(NpyError::Header("it is too long"));
    }
    let mut header = vec![0; header_length];
    source.read_exact(&mut header).map_err(cut)?;
    let header = std::str::from_utf8(&header).map_err(|_| NpyError::Header("it is not text"))?;
    let header = Header::parse(header)?;
    let found = length.saturating_sub((start.len() + width + header_length) as u64);
    let elements = checked_elements(&header.shape);
    let expected = elements.and_then(|n| n.checked_mul(header.dtype.size())).map(|n| n as u64);
    let expected = expected.ok_or_else(|| TensorError::TooLarge(header.shape.clone()))?;
    if expected != found {
        return Err(NpyError::Length { expected, found });
    }
    let mut bytes = Vec::new();
    source.take(expected).read_to_end(&mut bytes)?;
    if bytes.len() as u64 != expected {
        return Err(NpyError::Length { expected, found: bytes.len() as u64 });
    }
    header.tensor(bytes)
}

struct Header {
    dtype: DType,
    big_endian: bool,
    fortran_order: bool,
    shape: Vec<usize>,
}

impl Header {
    /// Reads `{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }`.
    fn parse(text: &str) -> Result<Self, NpyError> {
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        let mut rest = text.trim().strip_prefix('{').ok_or(NpyError::Header("no dictionary"))?;
        while !rest.trim_start().starts_with('}') {
            let (key, after) = quoted(rest)?;
            let after = after.trim_start().strip_prefix(':').ok_or(NpyError::Header("no `:`"))?;
            let after = match key {
                "descr" => {
                    let (value, after) = quoted(after)?;
                    descr = Some(value);
                    after
                }
                "fortran_order" => {
                    let after = after.trim_start();
                    let value = after.strip_prefix("False").map(|after| (false, after));
                    let value = value.or_else(|| Some((true, after.strip_prefix("True")?)));
                    let (value, after) = value.ok_or(NpyError::Header("no truth value"))?;
                    fortran_order = Some(value);
                    after
                }
                "shape" => {
                    let (value, after) = sizes(after)?;
                    shape = Some(value);
                    after
                }
                _ => return Err(NpyError::Header("an unknown key")),
            };
            rest = after.trim_start().strip_prefix(',').unwrap_or(after);
        }
        let descr = descr.ok_or(NpyError::Header("no `descr`"))?;
        let code = descr.strip_prefix(['<', '>', '|', '=']).unwrap_or(descr);
        let row = CODES.iter().find(|row| row.0 == code);
        let cut: String = descr.chars().take(20).collect();
        let unknown = || NpyError::Elements(visible(&cut).into_owned());
        Ok(Self {
            dtype: row.ok_or_else(unknown)?.1,
            big_endian: descr.starts_with('>'),
            fortran_order: fortran_order.ok_or(NpyError::Header("no `fortran_order`"))?,
            shape: shape.ok_or(NpyError::Header("no `shape`"))?,
        })
    }

    /// The tensor of these elements, brought to little-endian row-major order.
    fn tensor(self, mut bytes: Vec<u8>) -> Result<Tensor, NpyError> {
        let size = self.dtype.size();
        if self.big_endian {
            bytes.chunks_exact_mut(size).for_each(<[u8]>::reverse);
        }
        if self.fortran_order {
            bytes = row_major(&bytes, size, &self.shape);
        }
        if let (DType::Bool, Some(&odd)) = (self.dtype, bytes.iter().find(|&&byte| byte > 1)) {
            return Err(NpyError::Bool(odd));
        }
        Ok(Tensor::new(self.dtype, self.shape, Bytes::from(bytes))?)
    }
}

/// A quoted word and what follows it.
fn quoted(text: &str) -> Result<(&str, &str), NpyError> {
    let text = text.trim_start();
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'));
    let quote = quote.ok_or(NpyError::Header("no quoted word"))?;
    text[1..].split_once(quote).ok_or(NpyError::Header("a quote is not closed"))
}

/// A tuple of sizes and what follows it.
fn sizes(text: &str) -> Result<(Vec<usize>, &str), NpyError> {
    let inner = text.trim_start().strip_prefix('(').ok_or(NpyError::Header("no tuple"))?;
    let (inner, after) = inner.split_once(')').ok_or(NpyError::Header("a tuple is not closed"))?;
    let words = inner.split(',').map(str::trim).filter(|word| !word.is_empty());
    let sizes = words.map(|word| word.parse().map_err(|_| NpyError::Header("no size")));
    Ok((sizes.collect::<Result<_, _>>()?, after))
}

/// Elements of `size` bytes from column-major to row-major order.
fn row_major(bytes: &[u8], size: usize, shape: &[usize]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut index = vec![0; shape.len()];
    for _ in 0..bytes.len() / size {
        let place = index.iter().zip(shape).rev().fold(0, |place, (&i, &n)| place * n + i);
        out.extend_from_slice(&bytes[place * size..(place + 1) * size]);
        for (i, &n) in index.iter_mut().zip(shape).rev() {
            *i += 1;
            if *i < n {
                break;
            }
            *i = 0;
        }
    }
    out
}

/// An uncompressed `.npz` archive in memory. Types that NumPy lacks are written as raw bytes.
pub(crate) struct Archive(Box<ZipWriter<Cursor<Vec<u8>>>>);

impl Archive {
    /// An archive of nothing.
    pub(crate) fn new() -> Self {
        Self(Box::new(ZipWriter::new(Cursor::new(Vec::new()))))
    }

    /// Adds a tensor under a name.
    pub(crate) fn add(&mut self, name: &str, tensor: &Tensor) -> Result<(), NpyError> {
        let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
        let large = tensor.bytes().len() as u64 > u64::from(u32::MAX) - (1 << 20);
        self.0.start_file(format!("{name}.npy"), options.large_file(large))?;
        write_to(&mut self.0, tensor)
    }

    /// The whole file.
    pub(crate) fn bytes(self) -> Result<Vec<u8>, NpyError> {
        Ok(self.0.finish()?.into_inner())
    }
}

/// An archive of these tensors.
pub(crate) fn npz_bytes(tensors: &[(String, Tensor)]) -> Result<Vec<u8>, NpyError> {
    let mut archive = Archive::new();
    tensors.iter().try_for_each(|(name, tensor)| archive.add(name, tensor))?;
    archive.bytes()
}

/// A `.npy` file of this tensor.
pub(crate) fn npy_bytes(tensor: &Tensor) -> Result<Vec<u8>, NpyError> {
    let mut bytes = Vec::new();
    write_to(&mut bytes, tensor)?;
    Ok(bytes)
}

fn write_to(file: &mut impl Write, tensor: &Tensor) -> Result<(), NpyError> {
    let code = CODES.iter().find(|row| row.1 == tensor.dtype()).map(|row| row.0);
    let order = if tensor.dtype().size() == 1 { '|' } else { '<' };
    let code = code.map_or_else(|| format!("V{}", tensor.dtype().size()), str::to_owned);
    let sizes: String = tensor.shape().iter().map(|size| format!("{size}, ")).collect();
    let shape =
        if tensor.shape().len() == 1 { sizes.trim_end() } else { sizes.trim_end_matches(", ") };
    let mut header =
        format!("{{'descr': '{order}{code}', 'fortran_order': False, 'shape': ({shape}), }}");
    // Elements start at a multiple of 64 bytes; the header ends with a newline.
    let length = (MAGIC.len() + 4 + header.len() + 1).next_multiple_of(64) - MAGIC.len() - 4;
    header.extend(std::iter::repeat_n(' ', length - header.len() - 1));
    header.push('\n');
    let stated = u16::try_from(header.len()).map_err(|_| NpyError::Header("it is too long"))?;
    file.write_all(MAGIC)?;
    file.write_all(&[1, 0])?;
    file.write_all(&stated.to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    file.write_all(tensor.bytes())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{NpyError, npz_bytes, read_archive, read_from};
    use graphene_frontend::dtype::DType;
    use graphene_frontend::tensor::Tensor;
    use std::io::Cursor;

    fn file(version: [u8; 2], header: &str, elements: &[u8]) -> Vec<u8> {
        let mut bytes = b"\x93NUMPY".to_vec();
        bytes.extend(version);
        match version[0] {
            1 => bytes.extend((header.len() as u16).to_le_bytes()),
            _ => bytes.extend((header.len() as u32).to_le_bytes()),
        }
        bytes.extend(header.as_bytes());
        bytes.extend(elements);
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Tensor, NpyError> {
        read_from(&mut Cursor::new(bytes), bytes.len() as u64)
    }

    #[test]
    fn archives_round_trip() {
        let tensors = vec![
            (
                "x".to_owned(),
                Tensor::from_vec(vec![2, 3], (0..6).map(|i| i as f32).collect()).unwrap(),
            ),
            ("n".to_owned(), Tensor::from_vec(vec![3], vec![-1_i64, 0, 1]).unwrap()),
            ("yes".to_owned(), Tensor::from_bools(vec![], vec![true]).unwrap()),
            ("half".to_owned(), Tensor::from_vec(vec![1, 0], Vec::<half::bf16>::new()).unwrap()),
        ];
        let read = read_archive(Cursor::new(npz_bytes(&tensors).unwrap())).unwrap();
        assert_eq!(read, tensors);
    }

    /// One bit of the elements of an archive that does not compress.
    #[test]
    fn damaged_archives_are_refused() {
        let tensor = Tensor::from_vec(vec![4], vec![0.25_f32, 1.5, -3.0, 7.0]).unwrap();
        let bytes = npz_bytes(&[("x".to_owned(), tensor)]).unwrap();
        let elements: Vec<u8> = [0.25_f32, 1.5].into_iter().flat_map(f32::to_le_bytes).collect();
        let at = bytes.windows(elements.len()).position(|window| window == elements);
        let mut damaged = bytes.clone();
        damaged[at.expect("elements are stored as they are")] ^= 1;
        assert!(read_archive(Cursor::new(bytes)).is_ok());
        let error = read_archive(Cursor::new(damaged)).unwrap_err().to_string();
        assert!(error.contains("entry `x`") && error.contains("checksum"), "{error}");
    }

    #[test]
    fn all_versions_and_orders_are_read() {
        let rows = [[1, 0], [2, 0], [3, 0]];
        for version in rows {
            let header = "{'descr': '<i2', 'fortran_order': False, 'shape': (2,), }\n";
            let tensor = read(&file(version, header, &[1, 0, 2, 0])).unwrap();
            assert_eq!(tensor.as_slice::<i16>().unwrap(), [1, 2]);
        }
        let header = "{\"shape\": (2, 3), 'descr': '>i2', 'fortran_order': True}";
        let tensor = read(&file([1, 0], header, &[0, 1, 0, 4, 0, 2, 0, 5, 0, 3, 0, 6])).unwrap();
        assert_eq!(tensor.shape(), [2, 3]);
        assert_eq!(tensor.as_slice::<i16>().unwrap(), [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn truth_values_are_checked() {
        let header = "{'descr': '|b1', 'fortran_order': False, 'shape': (2,), }";
        assert_eq!(read(&file([1, 0], header, &[0, 1])).unwrap().dtype(), DType::Bool);
        assert!(matches!(read(&file([1, 0], header, &[0, 2])), Err(NpyError::Bool(2))));
    }

    #[test]
    fn malformed_files_are_refused_before_memory_is_taken() {
        let huge = "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000, 1000000000), }";
        let overflow =
            "{'descr': '<f8', 'fortran_order': False, 'shape': (9223372036854775807, 4), }";
        let rows = [
            (
                file([1, 0], huge, &[]),
                "the header asks for 8000000000000000000 bytes of elements, the file has 0",
            ),
            (
                file([1, 0], overflow, &[]),
                "a tensor of shape [9223372036854775807, 4] is too large",
            ),
            (file([4, 0], huge, &[]), ".npy version 4.0 is not known"),
            (
                file([1, 0], "{'descr': '<c8', 'fortran_order': False, 'shape': ()}", &[]),
                "elements of NumPy type `<c8` are not supported",
            ),
            (file([1, 0], "{'descr': '<f4'", &[]), "the header is malformed: no quoted word"),
            (file([1, 0], "{'shape': (-1,)}", &[]), "the header is malformed: no size"),
            (file([1, 0], "{'\u{e9}", &[]), "the header is malformed: a quote is not closed"),
            (file([1, 0], "{}", &[]), "the header is malformed: no `descr`"),
            (b"\x93NUMPY\x01\x00\xff\xff{".to_vec(), "the header is malformed: it is cut short"),
            (b"PK".to_vec(), "not a .npy file"),
            (Vec::new(), "not a .npy file"),
        ];
        for (bytes, message) in rows {
            assert_eq!(read(&bytes).unwrap_err().to_string(), message);
        }
        assert!(matches!(read_archive(Cursor::new(b"nothing")), Err(NpyError::Zip(_))));
    }
}
