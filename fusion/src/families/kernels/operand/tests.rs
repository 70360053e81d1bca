//! Which axes are one, and how many elements go at a time.

use super::{Axes, Matrix};
use crate::base::view::View;
use graphene_frontend::dim::Dim;
use graphene_frontend::op::SliceAxis;

fn shape<const N: usize>(sizes: [i64; N]) -> Vec<Dim> {
    sizes.map(Dim::from).to_vec()
}

fn axes(views: &[&View]) -> Axes {
    Axes::of(views).expect("all sizes are known")
}

/// Elements `first..` of the last axis of `[rows, row]`, so many of each row.
fn columns(rows: i64, row: i64, first: i64, len: i64) -> View {
    let range = SliceAxis { axis: 1, start: Dim::from(first), len: Dim::from(len), step: 1 };
    View::contiguous(&shape([rows, row])).slice(&[range])
}

#[test]
fn axes_that_all_operands_go_through_as_one_are_one() {
    let batch = Dim::symbol("batch");
    let whole = View::contiguous(&[batch.clone(), Dim::from(4), Dim::from(1), Dim::from(8)]);
    let all = &batch * &Dim::from(32);
    let own = axes(&[&whole, &whole]);
    assert_eq!((own.sizes, own.strides), (vec![all], vec![shape([1]), shape([1])]));
    // A row for all of a batch: its axes are one, the batch is another.
    let row = View::contiguous(&shape([4, 1, 8]));
    let own = axes(&[&whole, &row]);
    assert_eq!(own.sizes, [batch.clone(), Dim::from(32)]);
    assert_eq!(own.strides, [shape([32, 1]), shape([0, 1])]);
    // One number for each row of eight: these are another axis than their elements.
    let number = View::contiguous(&[batch.clone(), Dim::from(4), Dim::from(1), Dim::from(1)]);
    let own = axes(&[&whole, &number]);
    assert_eq!(own.sizes, [&batch * &Dim::from(4), Dim::from(8)]);
    assert_eq!(own.strides, [shape([8, 1]), shape([1, 0])]);
    // Rows with gaps between them, and an operand that lies in another order, keep their axes apart.
    let square = View::contiguous(&shape([8, 8]));
    assert_eq!(axes(&[&square, &columns(8, 16, 0, 8)]).sizes, shape([8, 8]));
    assert_eq!(axes(&[&square, &square.transpose(&[1, 0])]).sizes, shape([8, 8]));
    // What lies in another order throughout is gone through in that one.
    let turned = View::contiguous(&shape([8, 4])).transpose(&[1, 0]);
    assert_eq!(axes(&[&turned, &turned]).sizes, shape([32]));
    let single = View::contiguous(&shape([1, 1]));
    assert_eq!(axes(&[&single]).sizes, shape([1]));
}

/// A chunk is moved at a time where rows are whole chunks and all begin at multiples of one.
#[test]
fn chunks_are_parts_of_whole_rows() {
    for (view, elements) in [
        (columns(4, 32, 0, 24), 8),
        // The row's length, the distance between rows, and the first element say how many.
        (columns(4, 32, 0, 12), 4),
        (columns(4, 36, 0, 24), 4),
        (columns(4, 32, 2, 24), 2),
        (columns(4, 31, 0, 24), 1),
        (columns(4, 32, 0, 23), 1),
    ] {
        assert_eq!(axes(&[&view]).vector(&[&view.offset], 8), elements, "{view}");
        let matrix = Matrix::of(&view, &view.shape(), 1).expect("rows have one stride");
        let width = &view.modes[1].size;
        for chunk in [1, 2, 4, 8] {
            assert_eq!(matrix.is_aligned(chunk, width), chunk <= elements, "{view}: {chunk}");
        }
    }
    // An operand that repeats one element of a row has no chunks to begin anywhere.
    let (all, one) = (columns(4, 32, 0, 24), columns(4, 31, 3, 1));
    assert_eq!(axes(&[&all, &one]).vector(&[&all.offset, &one.offset], 8), 8);
    // No more than all operands allow; of a size that is not known, what divides it in any case.
    let odd = columns(4, 30, 0, 24);
    assert_eq!(axes(&[&all, &odd]).vector(&[&all.offset, &odd.offset], 8), 2);
    let sequence = &Dim::symbol("sequence") * &Dim::from(4);
    let view = View::contiguous(&[Dim::from(3), sequence]).transpose(&[0, 1]);
    assert_eq!(axes(&[&view]).vector(&[&view.offset], 8), 4);
}
