//! Elements of constants as text, exactly.

use crate::dtype::DType;
use crate::tensor::{Element, Tensor};
use half::{bf16, f16};

/// The elements, a word each.
pub(super) fn print(tensor: &Tensor) -> Vec<String> {
    match tensor.dtype() {
        DType::F32 => words(tensor, |x: f32| float(f64::from(x), format!("{x:?}"), x.to_bits())),
        DType::F64 => words(tensor, |x: f64| float(x, format!("{x:?}"), x.to_bits())),
        DType::F16 => words(tensor, |x: f16| {
            float(x.to_f64(), format!("{:?}", x.to_f32()), u32::from(x.to_bits()))
        }),
        DType::BF16 => words(tensor, |x: bf16| {
            float(x.to_f64(), format!("{:?}", x.to_f32()), u32::from(x.to_bits()))
        }),
        DType::I8 => words(tensor, |x: i8| x.to_string()),
        DType::I16 => words(tensor, |x: i16| x.to_string()),
        DType::I32 => words(tensor, |x: i32| x.to_string()),
        DType::I64 => words(tensor, |x: i64| x.to_string()),
        DType::U8 => words(tensor, |x: u8| x.to_string()),
        DType::U16 => words(tensor, |x: u16| x.to_string()),
        DType::U32 => words(tensor, |x: u32| x.to_string()),
        DType::U64 => words(tensor, |x: u64| x.to_string()),
        DType::Bool => tensor.bytes().iter().map(|&byte| bool_word(byte)).collect(),
        DType::I4
        | DType::U4
        | DType::I2
        | DType::U2
        | DType::F8E4M3Fn
        | DType::F8E4M3FnUz
        | DType::F8E5M2
        | DType::F8E5M2FnUz
        | DType::F8E8M0
        | DType::F4E2M1 => tensor.bytes().iter().map(|byte| format!("{byte:#x}")).collect(),
    }
}

/// The tensor of these words, or `None` if one is no element of the type.
pub(super) fn parse(dtype: DType, shape: Vec<usize>, words: &[&str]) -> Option<Tensor> {
    match dtype {
        DType::F32 => tensor(shape, words, |word| {
            number(word, |bits| u32::try_from(bits).ok().map(f32::from_bits))
        }),
        DType::F64 => tensor(shape, words, |word| number(word, |bits| Some(f64::from_bits(bits)))),
        DType::F16 => {
            tensor(shape, words, |word| half(word, f16::from_f32, f16::to_f32, f16::from_bits))
        }
        DType::BF16 => {
            tensor(shape, words, |word| half(word, bf16::from_f32, bf16::to_f32, bf16::from_bits))
        }
        DType::I8 => tensor(shape, words, |word| word.parse::<i8>().ok()),
        DType::I16 => tensor(shape, words, |word| word.parse::<i16>().ok()),
        DType::I32 => tensor(shape, words, |word| word.parse::<i32>().ok()),
        DType::I64 => tensor(shape, words, |word| word.parse::<i64>().ok()),
        DType::U8 => tensor(shape, words, |word| word.parse::<u8>().ok()),
        DType::U16 => tensor(shape, words, |word| word.parse::<u16>().ok()),
        DType::U32 => tensor(shape, words, |word| word.parse::<u32>().ok()),
        DType::U64 => tensor(shape, words, |word| word.parse::<u64>().ok()),
        DType::Bool
        | DType::I4
        | DType::U4
        | DType::I2
        | DType::U2
        | DType::F8E4M3Fn
        | DType::F8E4M3FnUz
        | DType::F8E5M2
        | DType::F8E5M2FnUz
        | DType::F8E8M0
        | DType::F4E2M1 => {
            let byte = |word: &&str| match (dtype, *word) {
                (DType::Bool, "false") => Some(0),
                (DType::Bool, "true") => Some(1),
                (_, word) => u8::try_from(bits(word)?).ok(),
            };
            let bytes: Option<Vec<u8>> = words.iter().map(byte).collect();
            Tensor::new(dtype, shape, bytes?.into()).ok()
        }
    }
}

fn words<T: Element>(tensor: &Tensor, word: impl Fn(T) -> String) -> Vec<String> {
    let elements = tensor.as_slice::<T>().expect("the caller matched the type");
    elements.iter().map(|&element| word(element)).collect()
}

fn tensor<T: Element>(
    shape: Vec<usize>,
    words: &[&str],
    element: impl Fn(&str) -> Option<T>,
) -> Option<Tensor> {
    let elements: Option<Vec<T>> = words.iter().map(|word| element(word)).collect();
    Tensor::from_vec(shape, elements?).ok()
}

/// The decimal of a number or infinity; the bits of anything else, since a NaN has a payload.
fn float(value: f64, decimal: String, bits: impl Into<u64>) -> String {
    if value.is_nan() { format!("{:#x}", bits.into()) } else { decimal }
}

fn number<T: std::str::FromStr>(word: &str, from_bits: impl Fn(u64) -> Option<T>) -> Option<T> {
    match bits(word) {
        Some(bits) => from_bits(bits),
        // Rust's `nan` has no payload, and is not what is printed.
        None if word.to_ascii_lowercase().contains("nan") => None,
        None => word.parse().ok(),
    }
}

fn half<T>(
    word: &str,
    from: impl Fn(f32) -> T,
    back: impl Fn(T) -> f32,
    from_bits: impl Fn(u16) -> T,
) -> Option<T>
where
    T: Copy,
{
    if let Some(bits) = bits(word) {
        return u16::try_from(bits).ok().map(from_bits);
    }
    let value: f32 = number(word, |_| None)?;
    // What does not fit the type exactly was not printed from it.
    Some(from(value)).filter(|&narrow| back(narrow) == value)
}

fn bits(word: &str) -> Option<u64> {
    let digits = word.strip_prefix("0x")?;
    // `from_str_radix` takes a sign.
    if digits.starts_with('+') {
        return None;
    }
    u64::from_str_radix(digits, 16).ok()
}

fn bool_word(byte: u8) -> String {
    match byte {
        0 => "false".to_owned(),
        1 => "true".to_owned(),
        other => format!("{other:#x}"),
    }
}
