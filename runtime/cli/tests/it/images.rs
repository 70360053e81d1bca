//! `--input x=@cat.png`: images, their labels, and what is said of them.

use crate::models::{FLOAT, graph, node, value, write};
use crate::text::{expected, fixture};
use crate::{Folder, json, quick};
use serde_json::{Value, json};
use std::fs;

fn cat() -> String {
    fixture("image-classifier/cat.png")
}

#[test]
fn labels_of_an_image_are_those_of_transformers() {
    let expected = expected("image-classifier");
    let (model, input) = (fixture("image-classifier"), format!("pixel_values=@{}", cat()));
    let found = json(&[&model, "--input", &input]);
    let labels = found["images"][0]["labels"].as_array().expect("labels");
    let of = |name: &str| labels.iter().map(|label| label[name].clone()).collect::<Value>();
    assert_eq!(of("label"), expected["labels"]);
    for (found, expected) in labels.iter().zip(expected["scores"].as_array().unwrap()) {
        let apart = found["score"].as_f64().unwrap() - expected.as_f64().unwrap();
        assert!(apart.abs() < 1e-5, "{labels:?} {expected}");
    }
    let done = "48×36 RGB, resized to 16×16 (bilinear as PIL does), times 0.003922, less [0.5, 0.5, 0.5], over \
                [0.5, 0.5, 0.5] (preprocessor_config.json)";
    assert_eq!(found["images"][0]["preprocessing"], done);
    let given = quick(&[&model, "--input", &input]);
    assert_eq!(
        given.stderr,
        format!("image {} as pixel_values f32[1, 3, 16, 16]: {done}\n", cat())
    );
    assert!(
        given.stdout.contains(" as pixel_values\n    rain   0.7948\n    cat    0.0869\n"),
        "{}",
        given.stdout
    );
}

#[test]
fn without_settings_an_image_is_stretched_and_that_is_told() {
    let folder = Folder::new();
    let inputs = vec![value("x", FLOAT, "n 3 height 20")];
    let model = write(&folder, graph(inputs, vec![], vec![node("Relu", "x", "y")], "y"));
    let input = format!("x=@{}", cat());
    let given = quick(&[&model, "--input", &input, "--dim", "height=10"]);
    let usual = "times 0.003922, less [0.485, 0.456, 0.406], over [0.229, 0.224, 0.225] (usual for models of ImageNet; no \
                 preprocessor_config.json says otherwise)";
    let told = format!(
        "image {} as x f32[1, 3, 10, 20]: 48×36 RGB, resized to 20×10 (bilinear as PIL does), {usual}\n",
        cat()
    );
    assert_eq!((given.code, given.stderr), (0, told));
    // Another side that nobody gives is the image's own: neither is changed then, and the model refuses it.
    let given = quick(&[&model, "--input", &input]);
    assert_eq!(given.code, 2, "{}", given.stdout);
    assert!(given.stderr.contains("cat.png"), "{}", given.stderr);
    let inputs = vec![value("x", FLOAT, "n 3 height width")];
    let model = write(&folder, graph(inputs, vec![], vec![node("Relu", "x", "y")], "y"));
    assert_eq!(json(&[&model, "--input", &input])["inputs"][0]["shape"], json!([1, 3, 36, 48]));
}

#[test]
fn files_that_are_no_images_are_told() {
    let (model, folder) = (fixture("image-classifier"), Folder::new());
    let mut png = fs::read(cat()).unwrap();
    png.truncate(300);
    let rows: [(&str, &[u8], &str); 4] = [
        ("cut.png", &png, ""),
        (
            "moving.gif",
            b"GIF89a\x01\0\x01\0\0\0\0;",
            ": gif images are not read: convert it to .png, .jpg or .webp\n",
        ),
        (
            "page.png",
            b"<!DOCTYPE html><html>",
            ": it is an HTML page, as a download that failed leaves; ",
        ),
        ("noise.png", b"\x01\x02\x03\x04\x05\x06\x07\x08", ": not a .npy file\n"),
    ];
    for (name, bytes, reason) in rows {
        fs::write(folder.path(name), bytes).unwrap();
        let given = quick(&[&model, "--input", &format!("pixel_values=@{}", folder.path(name))]);
        assert_eq!(given.code, 2, "{name}: {}", given.stderr);
        let begins = format!("error: {}{reason}", folder.path(name));
        assert!(given.stderr.starts_with(&begins), "{}", given.stderr);
    }
    let given = quick(&[&model, "--input", &format!("x=@{}", cat())]);
    assert!(
        given.stderr.contains("the model has no input `x`; it has pixel_values"),
        "{}",
        given.stderr
    );
}
