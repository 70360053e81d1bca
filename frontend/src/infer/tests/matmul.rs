//! Matrix products, convolutions and poolings.

use super::check;
use crate::op::{ConvAttrs, IndexOrder, Op, PoolAttrs, PoolKind};

#[test]
fn mat_mul() {
    let rows = [
        ("f32[2, 3]; f32[3, 4]", "f32[2, 4]"),
        ("f16[batch, 12, s, 64]; f16[batch, 12, 64, s]", "f16[batch, 12, s, s]"),
        ("f32[b, s, 768]; f32[768, 3072]", "f32[b, s, 3072]"),
        ("f32[5, 1, 2, 3]; f32[7, 3, 4]", "f32[5, 7, 2, 4]"),
        ("f32[2, k]; f32[3, 4]", "f32[2, 4]"),
        ("f32[2, k]; f32[l, 4]", "!Unresolved"),
        ("f32[2, 3]; f32[4, 5]", "!Dims"),
        ("f32[2, k + 4]; f32[4, 5]", "!Dims"),
        ("f32[2, 2, 3]; f32[3, 3, 4]", "!Broadcast"),
        ("f32[3]; f32[3, 4]", "!Rank"),
        ("f32[2, 3]; f16[3, 4]", "!DType"),
        ("bool[2, 3]; bool[3, 4]", "!DType"),
        ("f32[2, 0]; f32[0, 4]", "f32[2, 4]"),
    ];
    for (inputs, expected) in rows {
        check(&Op::MatMul, inputs, expected);
    }
    let rows = [
        ("f16[b, s, 768]; f16[768, 3072]", "f32[b, s, 3072]"),
        ("bf16[2, 3]; bf16[3, 4]", "f32[2, 4]"),
        ("f16[2, 3]; f32[3, 4]", "!DType"),
        ("i32[2, 3]; i32[3, 4]", "!DType"),
        ("f64[2, 3]; f64[3, 4]", "!DType"),
    ];
    for (inputs, expected) in rows {
        check(&Op::WideMatMul, inputs, expected);
    }
}

fn conv(stride: usize, dilation: usize, before: i64, after: i64, group: usize) -> ConvAttrs {
    ConvAttrs {
        strides: vec![stride],
        dilations: vec![dilation],
        pads_before: vec![before],
        pads_after: vec![after],
        group,
    }
}

#[test]
fn wide_convolutions_give_single_precision() {
    let rows = [
        ("f16[b, 3, 8]; f16[4, 3, 3]", "f32[b, 4, 6]"),
        ("bf16[1, 3, 8]; bf16[4, 3, 3]", "f32[1, 4, 6]"),
        ("f16[1, 3, 8]; f32[4, 3, 3]", "!DType"),
        ("i32[1, 3, 8]; i32[4, 3, 3]", "!DType"),
        ("f16[1, 3, 8]; f16[4, 3, 3]; f16[4]", "!Arity"),
    ];
    let attrs = ConvAttrs {
        strides: vec![1],
        dilations: vec![1],
        pads_before: vec![0],
        pads_after: vec![0],
        group: 1,
    };
    for (inputs, expected) in rows {
        check(&Op::WideConv(attrs.clone()), inputs, expected);
    }
}

#[test]
fn convolutions() {
    let rows = [
        (conv(1, 1, 0, 0, 1), "f32[n, 3, 10]; f32[8, 3, 3]; f32[8]", "f32[n, 8, 8]"),
        (conv(2, 1, 1, 1, 1), "f32[n, 3, 10]; f32[8, 3, 3]; -", "f32[n, 8, 5]"),
        (conv(2, 2, 1, 0, 1), "f32[n, 3, w]; f32[8, 3, 3]", "f32[n, 8, floor(w, 2) - 1]"),
        (conv(1, 1, 1, 1, 1), "f32[n, 3, w]; f32[8, 3, 3]", "f32[n, 8, w]"),
        (conv(1, 1, 0, 0, 2), "f32[n, 4, 5]; f32[6, 2, 5]", "f32[n, 6, 1]"),
        (conv(1, 1, 0, 0, 4), "f32[n, 4, 5]; f32[6, 1, 5]", "!Attribute"),
        (conv(1, 1, 0, 0, 2), "f32[n, 3, 5]; f32[6, 2, 5]", "!Dims"),
        (conv(1, 1, 0, 0, 1), "f32[n, 3, 4]; f32[8, 3, 6]", "!Negative"),
        (conv(1, 1, 0, 0, 1), "f32[n, 3, 4]; f32[8, 3, 3, 3]", "!Rank"),
        (conv(1, 1, 0, 0, 1), "f32[n, 3, 4, 4]; f32[8, 3, 3, 3]", "!Attribute"),
        (conv(0, 1, 0, 0, 1), "f32[n, 3, 4]; f32[8, 3, 3]", "!Attribute"),
        (conv(1, 0, 0, 0, 1), "f32[n, 3, 4]; f32[8, 3, 3]", "!Attribute"),
        (conv(1, 1, 0, 0, 0), "f32[n, 3, 4]; f32[8, 3, 3]", "!Attribute"),
        (conv(1, 1, 0, 0, 1), "f32[n, 3, 4]; f32[8, 3, 3]; f32[7]", "!Dims"),
        (conv(1, 1, 0, 0, 1), "f32[n, 3]; f32[8, 3]", "!Rank"),
    ];
    for (attrs, inputs, expected) in rows {
        check(&Op::Conv(attrs), inputs, expected);
    }
}

#[test]
fn transposed_convolutions() {
    let rows = [
        (conv(2, 1, 1, 1, 1), 1, "f32[n, 3, 5]; f32[3, 8, 3]; f32[8]", "f32[n, 8, 10]"),
        (conv(2, 2, 0, 0, 2), 0, "f32[n, 4, w]; f32[4, 3, 3]", "f32[n, 6, 2*w + 3]"),
        (conv(1, 1, 0, 0, 1), 0, "f32[n, 4, w]; f32[3, 3, 3]", "!Dims"),
        (conv(1, 1, 0, 0, 3), 0, "f32[n, 4, w]; f32[4, 3, 3]", "!Attribute"),
        (conv(1, 1, 9, 9, 1), 0, "f32[n, 4, 2]; f32[4, 3, 3]", "!Negative"),
    ];
    for (conv, padding, inputs, expected) in rows {
        check(&Op::ConvTranspose { conv, output_padding: vec![padding] }, inputs, expected);
    }
    let none = Op::ConvTranspose { conv: conv(1, 1, 0, 0, 1), output_padding: vec![] };
    check(&none, "f32[1, 4, 2]; f32[4, 3, 3]", "!Attribute");
}

fn pool(
    kind: PoolKind,
    [kernel, stride, dilation]: [usize; 3],
    pads: [usize; 2],
    ceil: bool,
) -> Op {
    Op::Pool(PoolAttrs {
        kind,
        kernel: vec![kernel],
        strides: vec![stride],
        dilations: vec![dilation],
        pads_before: vec![pads[0]],
        pads_after: vec![pads[1]],
        ceil,
    })
}

#[test]
fn poolings() {
    let max = || PoolKind::Max { indices: None };
    let places = || PoolKind::Max { indices: Some(IndexOrder::RowMajor) };
    let mean = || PoolKind::Average { include_pad: false };
    let rows = [
        (pool(max(), [2, 2, 1], [0, 0], false), "f32[n, c, 5]", "f32[n, c, 2]"),
        (pool(max(), [2, 2, 1], [0, 0], true), "f32[n, c, 5]", "f32[n, c, 3]"),
        // The third window would start in the padding after.
        (pool(max(), [1, 2, 1], [0, 1], true), "f32[n, c, 4]", "f32[n, c, 2]"),
        (pool(max(), [3, 2, 1], [1, 1], true), "f32[n, c, 6]", "f32[n, c, 4]"),
        (pool(max(), [3, 1, 2], [0, 0], false), "f32[n, c, w]", "f32[n, c, w - 4]"),
        (pool(max(), [3, 2, 1], [0, 0], true), "f32[n, c, w]", "f32[n, c, floor(w, 2)]"),
        (pool(places(), [2, 1, 1], [0, 0], false), "i8[1, 1, 4]", "i8[1, 1, 3]; i64[1, 1, 3]"),
        (pool(mean(), [2, 1, 1], [0, 0], false), "f16[1, 1, 4]", "f16[1, 1, 3]"),
        (pool(mean(), [2, 1, 1], [0, 0], false), "i8[1, 1, 4]", "!DType"),
        (pool(PoolKind::Lp { p: 2 }, [2, 1, 1], [0, 0], false), "f32[1, 4]", "!Rank"),
        (pool(mean(), [2, 1, 1], [0, 0], false), "f32[1, 1, 4, 4]", "!Attribute"),
        (pool(mean(), [2, 0, 1], [0, 0], false), "f32[1, 1, 4]", "!Attribute"),
        (pool(mean(), [6, 1, 1], [0, 0], false), "f32[1, 1, 4]", "!Negative"),
    ];
    for (op, inputs, expected) in rows {
        check(&op, inputs, expected);
    }
}

/// The closed form against counting windows one by one.
#[test]
fn pooled_sizes_agree_with_counting() {
    for (size, kernel, stride) in
        (1..9).flat_map(|n| (1..4).flat_map(move |k| (1..4).map(move |s| (n, k, s))))
    {
        for (before, after) in (0..kernel).flat_map(|a| (0..kernel).map(move |b| (a, b))) {
            let end = size + before + after;
            if end < kernel {
                continue;
            }
            let floor = (0..).take_while(|i| i * stride + kernel <= end).count();
            let overhang = |i: &usize| {
                let previous_fits = *i == 0 || (i - 1) * stride + kernel < end;
                previous_fits && i * stride < size + before
            };
            let ceil = (0..).take_while(overhang).count();
            for (rounding, expected) in [(false, floor), (true, ceil)] {
                let op = pool(
                    PoolKind::Max { indices: None },
                    [kernel, stride, 1],
                    [before, after],
                    rounding,
                );
                check(&op, &format!("f32[1, 1, {size}]"), &format!("f32[1, 1, {expected}]"));
            }
        }
    }
}
