//! Sizes and data that a model cannot be run with.

use crate::models::{FLOAT, INT64, graph, ints, node, numbers, value, write, zeros};
use crate::{Folder, quick};

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
