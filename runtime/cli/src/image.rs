//! `--input x=@cat.png`: images as inputs of a model.

mod recipe;
mod resample;
#[cfg(test)]
mod tests;

use crate::error::Error;
use crate::files;
use crate::human::counted;
use crate::inputs::Asked;
use crate::suspect;
use ::image::metadata::Orientation;
use ::image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader};
use graphene_frontend::dim::Dim;
use graphene_frontend::dtype::DType;
use graphene_frontend::tensor::Tensor;
use graphene_frontend::types::TensorType;
use half::{bf16, f16};
use recipe::{Recipe, Resize};
use resample::Pixels;
use std::fmt::Write;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Images that are inputs.
#[derive(Default, Debug)]
pub(crate) struct Images {
    /// Them, in the order of the command line.
    pub(crate) all: Vec<Image>,
    /// The folder beside the model.
    pub(crate) folder: Option<PathBuf>,
}

/// An image that is an input.
#[derive(Debug)]
pub(crate) struct Image {
    /// The input.
    pub(crate) input: String,
    /// Its file.
    pub(crate) path: PathBuf,
    /// What was done with it.
    pub(crate) done: String,
}

/// Where an input has its channels, rows and columns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Layout {
    /// Channels before rows.
    Planes,
    /// Channels of a pixel side by side.
    Interleaved,
}

/// What an input takes of an image.
struct Slot {
    dtype: DType,
    layout: Layout,
    channels: usize,
    /// Height and width, where they are known.
    size: Option<(usize, usize)>,
    /// Whether there is a dim for the batch.
    batch: bool,
}

/// Bytes that tell what a file is.
const HEAD: u64 = 32;

/// More bytes than any picture of a camera has decoded.
const MOST_BYTES: u64 = 1 << 30;

/// Whether a file is an image by its first bytes.
pub(crate) fn is_image(path: &Path) -> bool {
    // Opening a pipe would take what is in it.
    if !path.metadata().is_ok_and(|data| data.is_file()) {
        return false;
    }
    let mut head = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(HEAD).read_to_end(&mut head));
    read.is_ok() && ::image::guess_format(&head).is_ok()
}

impl Images {
    /// The tensor of an image for an input; says on stderr what was done.
    ///
    /// # Errors
    /// [`Error::Data`] for a file that cannot be read, [`Error::Flag`] for an input that takes no image.
    pub(crate) fn read(
        &mut self,
        input: &str,
        path: &Path,
        asked: &Asked<'_>,
    ) -> Result<Tensor, Error> {
        let declared = asked.declared.iter().find(|declared| declared.name == input);
        let known = || asked.declared.iter().map(|declared| declared.name.clone()).collect();
        let unknown = || Error::UnknownInput { name: input.to_owned(), known: known() };
        let slot = slot(input, declared.ok_or_else(unknown)?.ty.as_ref(), asked)?;
        let image = decode(path)?;
        let recipe = Recipe::read(asked.folder.as_deref(), slot.size)?;
        let recipe = if slot.dtype == DType::U8 { recipe.of_bytes() } else { recipe };
        let (tensor, done) = convert(&image, &recipe, &slot)
            .map_err(|reason| Error::Data { path: path.to_owned(), reason })?;
        let shown = format!("{} as {input} {tensor:?}: {done}", path.display());
        files::complain(&format!("image {shown}"));
        self.folder.clone_from(&asked.folder);
        self.all.push(Image { input: input.to_owned(), path: path.to_owned(), done });
        Ok(tensor)
    }
}

/// What an input takes.
fn slot(input: &str, ty: Option<&TensorType>, asked: &Asked<'_>) -> Result<Slot, Error> {
    let refused =
        |reason: String| Error::flag("--input", format!("`{input}` takes no image: {reason}"));
    let ty = ty.ok_or_else(|| refused("the model does not say its type".to_owned()))?;
    let floats = [DType::F32, DType::F16, DType::BF16, DType::U8];
    if !floats.contains(&ty.dtype) || !(3..=4).contains(&ty.rank()) {
        let needed =
            "f32, f16, bf16 or u8 of [batch, 3, height, width] or [batch, height, width, 3]";
        return Err(refused(format!("it is {ty}, and images are {needed}")));
    }
    let batch = ty.rank() == 4;
    let dims = &ty.shape[usize::from(batch)..];
    let channels = |dim: &Dim| dim.known().filter(|count| matches!(count, 1 | 3));
    let (layout, channels, sides) = match (channels(&dims[0]), channels(&dims[2])) {
        (Some(count), _) => (Layout::Planes, count, &dims[1..]),
        (None, Some(count)) => (Layout::Interleaved, count, &dims[..2]),
        (None, None) if dims[0].known().is_none() => (Layout::Planes, 3, &dims[1..]),
        (None, None) => {
            return Err(refused(format!("it is {ty}, which has no dim of 3 or 1 channels")));
        }
    };
    let side = |dim: &Dim| {
        let flags = &asked.sizes.dim;
        let by_flag =
            || flags.iter().find(|(name, _)| dim.as_symbol().is_some_and(|s| s.name() == name));
        let size = dim.known().or_else(|| Some(by_flag()?.1));
        size.and_then(|size| usize::try_from(size).ok()).filter(|size| *size > 0)
    };
    let size = side(&sides[0]).zip(side(&sides[1]));
    Ok(Slot { dtype: ty.dtype, layout, channels: channels as usize, size, batch })
}

/// Reads an image, turned as its camera was.
fn decode(path: &Path) -> Result<DynamicImage, Error> {
    let refused = |reason: String| Error::Data { path: path.to_owned(), reason };
    let reader = ImageReader::open(path).and_then(ImageReader::with_guessed_format);
    let reader = reader.map_err(|error| refused(error.to_string()))?;
    let readable = [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::WebP];
    if let Some(format) = reader.format().filter(|format| !readable.contains(format)) {
        let name = format!("{format:?}").to_lowercase();
        return Err(refused(format!(
            "{name} images are not read: convert it to .png, .jpg or .webp"
        )));
    }
    let cause = |error: ::image::ImageError| {
        refused(suspect::cause(path).unwrap_or_else(|| error.to_string()))
    };
    let mut decoder = reader.into_decoder().map_err(cause)?;
    if decoder.total_bytes() > MOST_BYTES {
        let (width, height) = decoder.dimensions();
        return Err(refused(format!("{width}×{height} pixels are too many to decode")));
    }
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let mut image = DynamicImage::from_decoder(decoder).map_err(cause)?;
    image.apply_orientation(orientation);
    Ok(image)
}

/// The tensor of an image, and what was done.
fn convert(image: &DynamicImage, recipe: &Recipe, slot: &Slot) -> Result<(Tensor, String), String> {
    let mut pixels = pixels(image, slot.channels);
    let mut done = format!(
        "{}×{} {}",
        pixels.width,
        pixels.height,
        if slot.channels == 1 { "grey" } else { "RGB" }
    );
    if pixels.width == 0 || pixels.height == 0 {
        return Err("the image has no pixels".to_owned());
    }
    let (height, width) = recipe.resize.size(pixels.height, pixels.width);
    if recipe.resize != Resize::None {
        let how = match recipe.resize {
            Resize::None | Resize::To(..) => "",
            Resize::Shorter(..) => ", proportions kept",
        };
        let _ =
            write!(done, ", resized to {width}×{height} ({} as PIL does{how})", recipe.filter.name);
        pixels = pixels.resized(height, width, recipe.filter);
    }
    if let Some((height, width)) = recipe.crop {
        let _ = write!(done, ", its middle {width}×{height}");
        pixels = pixels.cropped(height, width);
    }
    if let Some(factor) = recipe.factor {
        let _ = write!(done, ", times {factor:.6}");
    }
    if let Some((mean, deviation)) = &recipe.normal {
        for numbers in [mean, deviation] {
            if ![1, pixels.channels].contains(&numbers.len()) {
                let channels = counted(pixels.channels, "channel", "channels");
                return Err(format!("{numbers:?} are not for an input of {channels}"));
            }
        }
        let _ = write!(done, ", less {mean:?}, over {deviation:?}");
    }
    if slot.dtype == DType::U8 {
        done += ", as bytes";
    }
    let _ = write!(done, " ({})", recipe.by);
    let tensor = tensor(&pixels, recipe, slot).map_err(|error| error.to_string())?;
    Ok((tensor, done))
}

/// Pixels of one or three channels, as PIL converts them: transparency is dropped.
fn pixels(image: &DynamicImage, channels: usize) -> Pixels {
    let rgb = image.to_rgb8();
    let (height, width) = (rgb.height() as usize, rgb.width() as usize);
    let bytes = match channels {
        // ITU-R 601, in 16 bits.
        1 => {
            let [red, green, blue] = [19595, 38470, 7471];
            let grey = |p: &::image::Rgb<u8>| {
                let [r, g, b] = p.0.map(u32::from);
                ((r * red + g * green + b * blue + 0x8000) >> 16) as u8
            };
            rgb.pixels().map(grey).collect()
        }
        _ => rgb.into_raw(),
    };
    Pixels { height, width, channels, bytes }
}

/// The pixels as the input takes them.
fn tensor(
    pixels: &Pixels,
    recipe: &Recipe,
    slot: &Slot,
) -> Result<Tensor, graphene_frontend::tensor::TensorError> {
    let Pixels { height, width, channels, ref bytes } = *pixels;
    let area = height * width;
    let (sides, places): (_, Vec<usize>) = match slot.layout {
        Layout::Planes => {
            let plane = |channel| (0..area).map(move |pixel| pixel * channels + channel);
            ([channels, height, width], (0..channels).flat_map(plane).collect())
        }
        Layout::Interleaved => ([height, width, channels], (0..area * channels).collect()),
    };
    let shape = [&[1][usize::from(!slot.batch)..], &sides].concat();
    let at =
        |numbers: &[f32], place: usize| numbers.get(place % channels).or(numbers.first()).copied();
    let number = |place: usize| {
        let scaled = f64::from(bytes[place]) * recipe.factor.unwrap_or(1.0);
        let Some((mean, deviation)) = &recipe.normal else { return scaled as f32 };
        let (mean, deviation) =
            (at(mean, place).unwrap_or(0.0), at(deviation, place).unwrap_or(1.0));
        (scaled as f32 - mean) / deviation
    };
    let numbers = || places.iter().map(|&place| number(place));
    match slot.dtype {
        DType::U8 => Tensor::from_vec(shape, places.iter().map(|&place| bytes[place]).collect()),
        DType::F16 => Tensor::from_vec(shape, numbers().map(f16::from_f32).collect()),
        DType::BF16 => Tensor::from_vec(shape, numbers().map(bf16::from_f32).collect()),
        _ => Tensor::from_vec(shape, numbers().collect::<Vec<f32>>()),
    }
}
