//! How an image becomes an input: what `preprocessor_config.json` beside the model says, as Hugging Face's libraries write it.

use super::resample::{BILINEAR, Filter};
use crate::error::Error;
use crate::suspect;
use serde::Deserialize;
use std::path::Path;

/// The file beside a model.
pub(super) const FILE: &str = "preprocessor_config.json";

/// What pictures of ImageNet have, in red, green and blue.
const IMAGENET_MEAN: [f32; 3] = [0.485, 0.456, 0.406];
const IMAGENET_DEVIATION: [f32; 3] = [0.229, 0.224, 0.225];

/// Larger sizes are a mistake.
const MOST: usize = 1 << 14;

/// What is done with an image, in this order.
#[derive(Clone, Debug)]
pub(super) struct Recipe {
    pub(super) resize: Resize,
    pub(super) filter: Filter,
    /// Height and width of the middle that is kept.
    pub(super) crop: Option<(usize, usize)>,
    /// What bytes are multiplied by.
    pub(super) factor: Option<f64>,
    /// What is subtracted, and then divided by: one number, or one a channel.
    pub(super) normal: Option<(Vec<f32>, Vec<f32>)>,
    /// Who says so.
    pub(super) by: &'static str,
}

/// The size of a resized image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Resize {
    /// Its own.
    None,
    /// This height and width.
    To(usize, usize),
    /// This of its shorter side, its proportions kept; the longer side has at most the other, if there is one.
    Shorter(usize, Option<usize>),
}

/// The parts of the file that count here.
#[derive(Deserialize, Default)]
#[serde(default)]
struct File {
    do_resize: Option<bool>,
    size: Option<Size>,
    crop_pct: Option<f64>,
    resample: Option<u8>,
    do_center_crop: Option<bool>,
    crop_size: Option<Size>,
    do_rescale: Option<bool>,
    rescale_factor: Option<f64>,
    do_normalize: Option<bool>,
    image_mean: Option<Numbers>,
    image_std: Option<Numbers>,
}

#[derive(Deserialize, Clone)]
#[serde(untagged)]
enum Size {
    Edge(usize),
    Edges {
        height: Option<usize>,
        width: Option<usize>,
        shortest_edge: Option<usize>,
        longest_edge: Option<usize>,
    },
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Numbers {
    One(f32),
    Many(Vec<f32>),
}

impl Recipe {
    /// That of a model's folder; without a file, that of most models of ImageNet at this height and width.
    ///
    /// # Errors
    /// [`Error::Data`] for a file that cannot be read, or asks for what is not known here.
    pub(super) fn read(folder: Option<&Path>, size: Option<(usize, usize)>) -> Result<Self, Error> {
        let path = folder.map(|folder| folder.join(FILE)).filter(|path| path.is_file());
        let Some(path) = path else {
            return Ok(Self {
                resize: size.map_or(Resize::None, |(height, width)| Resize::To(height, width)),
                filter: BILINEAR,
                crop: None,
                factor: Some(1.0 / 255.0),
                normal: Some((IMAGENET_MEAN.into(), IMAGENET_DEVIATION.into())),
                by: "usual for models of ImageNet; no preprocessor_config.json says otherwise",
            });
        };
        let refused = |reason: String| Error::Data {
            path: path.clone(),
            reason: suspect::cause(&path).unwrap_or(reason),
        };
        let text = std::fs::read(&path).map_err(|error| refused(error.to_string()))?;
        let file: File =
            serde_json::from_slice(&text).map_err(|error| refused(error.to_string()))?;
        file.recipe().map_err(refused)
    }

    /// What is done besides resizing and cropping is left out: bytes are wanted.
    pub(super) fn of_bytes(self) -> Self {
        Self { factor: None, normal: None, ..self }
    }
}

impl Resize {
    /// Height and width of an image of this height and width.
    pub(super) fn size(self, height: usize, width: usize) -> (usize, usize) {
        match self {
            Self::None => (height, width),
            Self::To(height, width) => (height, width),
            Self::Shorter(edge, most) => {
                let (short, long) = (height.min(width) as f64, height.max(width) as f64);
                let edge = edge as f64;
                let limit = most.map(|most| most as f64).filter(|most| edge * long / short > *most);
                let edge = limit.map_or(edge, |most| most * short / long);
                let short_side = (edge.round() as usize).max(1);
                let long_side = ((edge * long / short) as usize).clamp(short_side, MOST);
                if height <= width { (short_side, long_side) } else { (long_side, short_side) }
            }
        }
    }
}

impl File {
    fn recipe(self) -> Result<Recipe, String> {
        let crops = self.do_center_crop.unwrap_or(false);
        let mut crop = match (&self.crop_size, crops) {
            (_, false) => None,
            (Some(size), true) => Some(size.both("crop_size")?),
            (None, true) => return Err("do_center_crop needs a crop_size".to_owned()),
        };
        let mut resize = match &self.size {
            Some(size) if self.do_resize.unwrap_or(true) => size.resize(crops)?,
            _ => Resize::None,
        };
        // ConvNeXT and ResNet: a part of a larger image, or all of it where that is large already.
        if let (Some(part), Resize::Shorter(edge, None)) = (self.crop_pct, resize) {
            if edge < 384 {
                resize = Resize::Shorter(bounded("size", (edge as f64 / part) as usize)?, None);
                crop = Some((edge, edge));
            } else {
                resize = Resize::To(edge, edge);
            }
        }
        let number = self.resample.unwrap_or(2);
        let filter = Filter::of(number);
        let filter = filter.ok_or_else(|| format!("resample {number} is no filter of PIL's"))?;
        let rescales = self.do_rescale.unwrap_or(true);
        let factor = rescales.then(|| self.rescale_factor.unwrap_or(1.0 / 255.0));
        let normal = match (self.image_mean, self.image_std) {
            _ if self.do_normalize == Some(false) => None,
            (Some(mean), Some(deviation)) => Some((mean.list(), deviation.list())),
            (None, None) if self.do_normalize.is_none() => None,
            _ => return Err("do_normalize needs image_mean and image_std".to_owned()),
        };
        Ok(Recipe { resize, filter, crop, factor, normal, by: FILE })
    }
}

impl Size {
    /// The height and width that it says.
    fn both(&self, name: &str) -> Result<(usize, usize), String> {
        match *self {
            Self::Edge(edge) => Ok((bounded(name, edge)?, bounded(name, edge)?)),
            Self::Edges { height: Some(height), width: Some(width), .. } => {
                Ok((bounded(name, height)?, bounded(name, width)?))
            }
            Self::Edges { shortest_edge: Some(edge), .. } => {
                Ok((bounded(name, edge)?, bounded(name, edge)?))
            }
            Self::Edges { .. } => Err(format!("{name} needs height and width")),
        }
    }

    /// The size of a resized image. A single number is that of its shorter side where its middle is kept.
    fn resize(&self, crops: bool) -> Result<Resize, String> {
        match *self {
            Self::Edge(edge) if crops => Ok(Resize::Shorter(bounded("size", edge)?, None)),
            Self::Edges { shortest_edge: Some(edge), longest_edge, .. } => {
                let most = longest_edge.map(|most| bounded("size", most)).transpose()?;
                Ok(Resize::Shorter(bounded("size", edge)?, most))
            }
            _ => self.both("size").map(|(height, width)| Resize::To(height, width)),
        }
    }
}

impl Numbers {
    fn list(self) -> Vec<f32> {
        match self {
            Self::One(number) => vec![number],
            Self::Many(numbers) => numbers,
        }
    }
}

fn bounded(name: &str, size: usize) -> Result<usize, String> {
    match size {
        1..=MOST => Ok(size),
        _ => Err(format!("{name} is {size}; it may be 1 to {MOST}")),
    }
}
