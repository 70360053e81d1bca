//! Pixels beside those of transformers' image processors, which `tests/data/fixtures.py` recorded.

use super::{Layout, Slot, convert, decode, is_image, slot};
use super::{Recipe, recipe::FILE};
use crate::args::Arguments;
use crate::inputs::Asked;
use crate::npy::read_npy;
use clap::Parser;
use graphene_frontend::dtype::DType;
use graphene_frontend::import::DeclaredInput;
use graphene_frontend::tensor::Tensor;
use std::path::{Path, PathBuf};

fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(path)
}

fn planes(channels: usize) -> Slot {
    Slot { dtype: DType::F32, layout: Layout::Planes, channels, size: None, batch: true }
}

/// Recorded pixels are the last rows and columns of what is found.
fn largest_error(found: &Tensor, expected: &Tensor) -> f32 {
    let (&[_, channels, height, width], &[1, expected_channels, rows, columns]) =
        (found.shape(), expected.shape())
    else {
        panic!("{found:?} {expected:?}")
    };
    assert_eq!(channels, expected_channels);
    let (found, expected) = (found.as_slice::<f32>().unwrap(), expected.as_slice::<f32>().unwrap());
    let mut largest = 0.0_f32;
    for (place, expected) in expected.iter().enumerate() {
        let (channel, row, column) =
            (place / rows / columns, place / columns % rows, place % columns);
        let (row, column) = (row + height - rows, column + width - columns);
        largest = largest.max((found[(channel * height + row) * width + column] - expected).abs());
    }
    largest
}

#[test]
fn pixels_are_those_of_transformers_image_processors() {
    let image = decode(&data("image-classifier/cat.png")).unwrap();
    let mut folders: Vec<PathBuf> =
        data("pixel-values").read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    assert_eq!(folders.len(), 10, "{folders:?}");
    for folder in folders {
        let expected = read_npy(&folder.join("pixels.npy")).unwrap();
        let recipe = Recipe::read(Some(&folder), None).unwrap();
        let (found, done) = convert(&image, &recipe, &planes(expected.shape()[1])).unwrap();
        let error = largest_error(&found, &expected);
        assert!(error < 1e-5, "{}: {error}; {done}", folder.display());
        assert!(done.ends_with("(preprocessor_config.json)"), "{done}");
    }
}

#[test]
fn formats_and_turns_give_the_same_picture() {
    let png = decode(&data("image-classifier/cat.png")).unwrap().to_rgb8();
    let near = |name: &str| {
        let other = decode(&data("image-classifier").join(name)).unwrap().to_rgb8();
        assert_eq!(other.dimensions(), (48, 36), "{name}");
        let apart = png.as_raw().iter().zip(other.as_raw()).map(|(a, b)| f64::from(a.abs_diff(*b)));
        apart.sum::<f64>() / png.as_raw().len() as f64
    };
    assert_eq!(near("cat.webp"), 0.0);
    // What JPEG loses.
    assert!(
        near("cat.jpg") < 3.0 && near("turned.jpg") < 3.0,
        "{} {}",
        near("cat.jpg"),
        near("turned.jpg")
    );
    assert!(is_image(&data("image-classifier/cat.jpg")));
    assert!(
        !is_image(&data("image-classifier/model.onnx"))
            && !is_image(&data("pixel-values/grey/pixels.npy"))
    );
}

/// What an input of this type takes, where flags give `height` 20 and `width` 30.
fn check_slot(ty: &str, expected: &str) {
    let declared = [DeclaredInput { name: "x".to_owned(), ty: Some(ty.parse().unwrap()) }];
    let flags = ["graphene-run", "m", "--dim", "height=20", "--dim", "width=30"];
    let arguments = Arguments::try_parse_from(flags).unwrap();
    let asked = Asked { declared: &declared, folder: None, sizes: &arguments.sizes };
    let found = match slot("x", declared[0].ty.as_ref(), &asked) {
        Ok(Slot { dtype, layout, channels, size, batch }) => {
            let size = size.map_or("any".to_owned(), |(height, width)| format!("{height}x{width}"));
            format!(
                "{dtype} {layout:?} {channels} {size} {}",
                if batch { "batch" } else { "alone" }
            )
        }
        Err(error) => error.to_string(),
    };
    assert_eq!(found, expected, "{ty}");
}

#[test]
fn inputs_say_where_their_channels_are() {
    check_slot("f32[n, 3, 224, 192]", "f32 Planes 3 224x192 batch");
    check_slot("f16[1, 1, h, w]", "f16 Planes 1 any batch");
    check_slot("u8[n, 224, 192, 3]", "u8 Interleaved 3 224x192 batch");
    check_slot("f32[a, b, height, width]", "f32 Planes 3 20x30 batch");
    check_slot("bf16[height, width, 3]", "bf16 Interleaved 3 20x30 alone");
    check_slot("f32[3, 5, 7]", "f32 Planes 3 5x7 alone");
    let refused = "--input: `x` takes no image: it is ";
    let images = ", and images are f32, f16, bf16 or u8 of [batch, 3, height, width] or [batch, height, width, 3]";
    check_slot("i64[n, 3, 224, 192]", &format!("{refused}i64[n, 3, 224, 192]{images}"));
    check_slot("f32[n, 3]", &format!("{refused}f32[n, 3]{images}"));
    check_slot(
        "f32[n, 5, 224, 7]",
        &format!("{refused}f32[n, 5, 224, 7], which has no dim of 3 or 1 channels"),
    );
}

#[test]
fn bytes_stay_bytes_and_pixels_stay_together() {
    let image = decode(&data("image-classifier/cat.png")).unwrap();
    let recipe = Recipe::read(None, None).unwrap().of_bytes();
    let slot = Slot {
        dtype: DType::U8,
        layout: Layout::Interleaved,
        channels: 3,
        size: None,
        batch: true,
    };
    let (found, done) = convert(&image, &recipe, &slot).unwrap();
    assert_eq!(
        (found.shape(), found.bytes()),
        (&[1, 36, 48, 3][..], image.to_rgb8().as_raw().as_slice())
    );
    assert!(done.starts_with("48×36 RGB, as bytes (usual for models of ImageNet"), "{done}");
}

#[test]
fn settings_that_cannot_be_followed_are_told() {
    let folder = std::env::temp_dir().join(format!("graphene-run-recipe-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let rows = [
        ("{", "EOF while parsing an object"),
        (r#"{"size": {"height": 0, "width": 3}}"#, "size is 0; it may be 1 to 16384"),
        (r#"{"size": {"width": 3}}"#, "size needs height and width"),
        (r#"{"size": 3, "resample": 9}"#, "resample 9 is no filter of PIL's"),
        (r#"{"do_center_crop": true}"#, "do_center_crop needs a crop_size"),
        (
            r#"{"do_normalize": true, "image_std": 1.0}"#,
            "do_normalize needs image_mean and image_std",
        ),
        ("version https://git-lfs.github.com/spec/v1\n", "git-LFS pointer"),
    ];
    for (text, reason) in rows {
        std::fs::write(folder.join(FILE), text).unwrap();
        let error = Recipe::read(Some(&folder), None).unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains(FILE), "{error}");
    }
    std::fs::write(folder.join(FILE), r#"{"image_mean": [0.5, 0.5], "image_std": 1}"#).unwrap();
    let recipe = Recipe::read(Some(&folder), None).unwrap();
    let image = decode(&data("image-classifier/cat.png")).unwrap();
    let error = convert(&image, &recipe, &planes(3)).unwrap_err();
    assert_eq!(error, "[0.5, 0.5] are not for an input of 3 channels");
    std::fs::remove_dir_all(&folder).unwrap();
}
