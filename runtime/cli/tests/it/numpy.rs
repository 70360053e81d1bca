//! Inputs and outputs in NumPy's files.

use crate::models::npy;
use crate::{Folder, json, quick};

/// A `.npy` file of these sizes, all elements zero bytes.
fn zeros(descr: &str, shape: &str, bytes: usize) -> Vec<u8> {
    npy(descr, shape, &vec![0; bytes])
}

#[test]
fn outputs_can_be_saved_and_inputs_given() {
    let folder = Folder::new();
    let (x, y) = (folder.path("x.npy"), folder.path("y.npz"));
    std::fs::write(&x, zeros("<f4", "3, 8", 96)).unwrap();
    let report = json(&["zoo:mlp-2x8", "--input", &format!("x=@{x}"), "--save-outputs", &y]);
    assert_eq!(report["sizes"]["batch"], 3);
    assert_eq!(report["inputs"][0]["source"], x);
    assert_eq!(folder.files(), ["x.npy", "y.npz"]);
    // What was written can be read: the output has the type and sizes of an input.
    let chained = json(&["zoo:mlp-2x8", "--inputs", &y]);
    assert_eq!(chained["exit_code"], 2);
    assert_eq!(chained["error"]["message"], "the model has no input `y`; it has x");
}

#[test]
fn wrong_inputs_are_refused_by_name() {
    let folder = Folder::new();
    let path = folder.path("x.npy");
    let flag = format!("x=@{path}");
    let rows: [(Vec<u8>, &[&str], String); 6] = [
        (
            zeros("<f8", "3, 8", 192),
            &[],
            format!("input `x` should be f32[batch, 8], but {path} has f64[3, 8]"),
        ),
        (
            zeros("<f4", "3, 9", 108),
            &[],
            format!("input `x` should be f32[batch, 8], but {path} has f32[3, 9]"),
        ),
        (
            zeros("<f4", "8,", 32),
            &[],
            format!("input `x` should be f32[batch, 8], but {path} has f32[8]"),
        ),
        (
            zeros("<f4", "0, 8", 0),
            &["--batch", "4"],
            format!("--batch: dimension `batch` cannot be 4: it is 0 by input `x` from {path}"),
        ),
        (
            zeros("<f4", "3, 8", 95),
            &[],
            format!("{path}: the header asks for 96 bytes of elements, the file has 95"),
        ),
        (
            zeros("<f4", "3, 8", 96),
            &["--batch", "4"],
            format!("--batch: dimension `batch` cannot be 4: it is 3 by input `x` from {path}"),
        ),
    ];
    for (file, more, message) in rows {
        std::fs::write(&path, file).unwrap();
        let given = quick(&[&["zoo:mlp-2x8", "--input", &flag], more].concat());
        assert_eq!((given.code, given.stderr), (2, format!("error: {message}\n")));
    }
    let given = quick(&["zoo:mlp-2x8", "--input", &format!("y=@{path}")]);
    assert_eq!(given.stderr, "error: the model has no input `y`; it has x\n");
    let given = quick(&["zoo:mlp-2x8", "--input", "x=@/nowhere.npy"]);
    assert_eq!(
        (given.code, given.stderr.as_str()),
        (7, "error: /nowhere.npy: No such file or directory (os error 2)\n")
    );
    let given = quick(&["zoo:mlp-2x8", "--save-outputs", "/nowhere/y.npz"]);
    assert_eq!(
        (given.code, given.stderr.as_str()),
        (7, "error: cannot write /nowhere/y.npz: No such file or directory (os error 2)\n")
    );
}
