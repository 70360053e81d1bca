//! Sizes and data that a model cannot be run with.

use crate::fixtures::fixture;
use crate::models::{FLOAT, INT64, graph, ints, node, numbers, value, write, zeros};
use crate::{Folder, quick};

/// Sizes that no machine has the memory for are a usage error whatever the model does with them.
#[test]
fn memory_is_asked_for_before_it_is_taken() {
    let folder = Folder::new();
    // The import takes the size of the batch into the graph: it may differ from that of the rows.
    let inputs = vec![value("x", FLOAT, "batch"), value("z", FLOAT, "rows")];
    let asking = write(&folder, graph(inputs, vec![], vec![node("Add", "x z", "y")], "y"));
    let models = ["zoo:mlp-2x8", &fixture("bert-tiny").0, &fixture("lstm").0, &fixture("fmha").0];
    for size in ["8000000000", "1000000000000", "9000000000000000000"] {
        for model in models {
            let given = quick(&[model, "--batch", size]);
            assert_eq!(given.code, 2, "{model}: {}", given.stderr);
            let wanted = format!("error: batch={size}");
            assert!(given.stderr.starts_with(&wanted), "{model}: {}", given.stderr);
            assert!(given.stderr.contains(" of memory are needed for "), "{}", given.stderr);
        }
        let given = quick(&[&asking, "--batch", size, "--dim", &format!("rows={size}")]);
        assert_eq!(given.code, 2, "{}", given.stderr);
    }
}

#[test]
fn sizes_that_a_model_is_not_made_for_are_named() {
    let folder = Folder::new();
    // A shape that only one batch has.
    let shape = ints("shape", &[2], &[7, 4]);
    let nodes = || vec![node("Reshape", "x shape", "r"), node("Abs", "r", "y")];
    let inputs = || vec![value("x", FLOAT, "batch 4")];
    let model = write(&folder, graph(inputs(), vec![shape], nodes(), "y"));
    let given = quick(&[&model, "--batch", "3"]);
    assert_eq!(given.code, 3, "{}", given.stderr);
    assert!(given.stderr.contains("--batch"), "{}", given.stderr);
}

#[test]
fn indices_out_of_range_name_their_input() {
    let folder = Folder::new();
    let table = ints("table", &[3, 2], &[1, 2, 3, 4, 5, 6]);
    let nodes = || vec![node("Abs", "ids", "i"), node("Gather", "table i", "y")];
    let inputs = || vec![value("ids", INT64, "p"), value("x", FLOAT, "p")];
    let model = write(&folder, graph(inputs(), vec![table], nodes(), "y"));
    let (ids, x) = (numbers(&folder, "ids", "2,", &[1, 9]), zeros(&folder, "x", "2,", 2));
    for exec in ["fused", "library", "reference"] {
        let flags = ["--input", &ids, "--input", &x, "--exec", exec];
        let given = quick(&[&[&*model], &flags[..]].concat());
        assert_eq!(given.code, 2, "{exec}: {}", given.stderr);
        let follows =
            format!("; the index follows from input `ids` from {}\n", folder.path("ids.npy"));
        assert!(given.stderr.ends_with(&follows), "{exec}: {}", given.stderr);
        assert!(
            given.stderr.contains("index 9 ") && given.stderr.contains('y'),
            "{}",
            given.stderr
        );
    }
}

/// Tuning times kernels of a GPU: where none runs the model, that is said rather than left out.
#[test]
fn tuning_needs_a_gpu() {
    let folder = Folder::new();
    for flag in [["--tune", "1s"], ["--tuning", &folder.path("m.tuning.json")]] {
        for model in [&["zoo:mlp-2x8"][..], &["zoo:mlp-2x8", "--target", "sm_90a"]] {
            let given = quick(&[model, &flag[..]].concat());
            assert_eq!(given.code, 2, "{}", given.stderr);
            let expected = format!(
                "error: {}: it is about kernels of a GPU, and none runs the model\n",
                flag[0]
            );
            assert_eq!(given.stderr, expected);
        }
    }
    assert!(folder.files().is_empty());
}
