//! Walks over row-major and strided index spaces.

/// Row-major strides, in elements.
pub(super) fn strides(shape: &[usize]) -> Vec<isize> {
    let mut strides = vec![1_isize; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis].wrapping_mul(shape[axis] as isize);
    }
    strides
}

/// The shape that all broadcast to by NumPy's rule, if there is one.
pub(super) fn broadcast(shapes: &[&[usize]]) -> Option<Vec<usize>> {
    let rank = shapes.iter().map(|shape| shape.len()).max().unwrap_or(0);
    let mut result = vec![1; rank];
    for shape in shapes {
        for (size, &other) in result[rank - shape.len()..].iter_mut().zip(*shape) {
            match (*size, other) {
                (1, other) => *size = other,
                (size, other) if size == other || other == 1 => {}
                _ => return None,
            }
        }
    }
    Some(result)
}

/// Strides that read a tensor of shape `from` as one of shape `to`: zero along broadcast axes.
pub(super) fn broadcast_strides(from: &[usize], to: &[usize]) -> Option<Vec<isize>> {
    let lead = to.len().checked_sub(from.len())?;
    let mut result = vec![0; lead];
    for ((&size, &target), stride) in from.iter().zip(&to[lead..]).zip(strides(from)) {
        match size {
            _ if size == target => result.push(if size == 1 { 0 } else { stride }),
            1 => result.push(0),
            _ => return None,
        }
    }
    Some(result)
}

/// Visits all places of `shape` in row-major order, with an offset for each list of strides:
/// `start + Σ index · stride`. The caller sees to it that the offsets are in range.
pub(super) fn walk<const N: usize>(
    shape: &[usize],
    strides: [&[isize]; N],
    start: [isize; N],
    mut visit: impl FnMut([usize; N]),
) {
    if shape.contains(&0) {
        return;
    }
    let Some((&run, outer)) = shape.split_last() else {
        visit(start.map(|offset| offset as usize));
        return;
    };
    let inner = strides.map(|strides| strides[outer.len()]);
    let mut index = vec![0; outer.len()];
    let mut at = start;
    loop {
        let mut here = at;
        for _ in 0..run {
            visit(here.map(|offset| offset as usize));
            for (offset, step) in here.iter_mut().zip(inner) {
                *offset = offset.wrapping_add(step);
            }
        }
        let mut axis = outer.len();
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            index[axis] += 1;
            for (offset, strides) in at.iter_mut().zip(strides) {
                *offset = offset.wrapping_add(strides[axis]);
            }
            if index[axis] < outer[axis] {
                break;
            }
            index[axis] = 0;
            for (offset, strides) in at.iter_mut().zip(strides) {
                let back = strides[axis].wrapping_mul(outer[axis] as isize);
                *offset = offset.wrapping_sub(back);
            }
        }
    }
}

/// Visits all index vectors of `shape` in row-major order.
pub(super) fn walk_indices(shape: &[usize], mut visit: impl FnMut(&[usize])) {
    if shape.contains(&0) {
        return;
    }
    let mut index = vec![0; shape.len()];
    loop {
        visit(&index);
        let mut axis = shape.len();
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
}

/// `(outer, size, inner)`: products of the sizes before, at and after the axis. Beside a zero they may be
/// huge: who loops over them looks first whether there are elements.
pub(super) fn split_at_axis(shape: &[usize], axis: usize) -> (usize, usize, usize) {
    let product = |sizes: &[usize]| sizes.iter().fold(1_usize, |p, &n| p.saturating_mul(n));
    (product(&shape[..axis]), shape[axis], product(&shape[axis + 1..]))
}

#[cfg(test)]
mod tests {
    use super::{broadcast, broadcast_strides, strides, walk};

    /// Rows: two shapes and what they broadcast to.
    #[test]
    fn shapes_broadcast() {
        type Row = (&'static [usize], &'static [usize], Option<&'static [usize]>);
        let rows: [Row; 6] = [
            (&[2, 3], &[3], Some(&[2, 3])),
            (&[2, 1], &[1, 3], Some(&[2, 3])),
            (&[], &[4], Some(&[4])),
            (&[0], &[1], Some(&[0])),
            (&[2], &[3], None),
            (&[0], &[2], None),
        ];
        for (a, b, expected) in rows {
            assert_eq!(broadcast(&[a, b]).as_deref(), expected, "{a:?} {b:?}");
            assert_eq!(broadcast(&[b, a]).as_deref(), expected, "{b:?} {a:?}");
        }
        assert_eq!(broadcast_strides(&[2, 1], &[4, 2, 3]), Some(vec![0, 1, 0]));
        assert_eq!(broadcast_strides(&[2, 3], &[3]), None);
    }

    #[test]
    fn walks_visit_every_place_once() {
        let shape = [2, 3, 4];
        let row_major = strides(&shape);
        let reversed: Vec<_> = row_major.iter().map(|stride| -stride).collect();
        let mut seen = Vec::new();
        walk(&shape, [&row_major, &reversed], [0, 23], |[a, b]| seen.push((a, b)));
        let expected: Vec<_> = (0..24).map(|i| (i, 23 - i)).collect();
        assert_eq!(seen, expected);
        walk(&[2, 0], [&[1, 1]], [0], |_: [usize; 1]| panic!("an empty space has no place"));
    }
}
