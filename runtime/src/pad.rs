//! Requests in buckets: the part that tensors of two sizes have in common.
//!
//! Whether a dim may be padded is [`graphene_fusion::pad`]'s to say.

/// Copies the elements that two tensors in row-major order have in common: those at indices that both shapes have.
/// Elements are `width` bytes wide; the shapes are of one rank.
pub(crate) fn copy_corner(
    (to, to_shape): (&mut [u8], &[usize]),
    (from, from_shape): (&[u8], &[usize]),
    width: usize,
) {
    let (Some((&rows, to_inner)), Some((&given, from_inner))) =
        (to_shape.split_first(), from_shape.split_first())
    else {
        to.copy_from_slice(from);
        return;
    };
    if to_inner == from_inner {
        let len = to.len().min(from.len());
        to[..len].copy_from_slice(&from[..len]);
        return;
    }
    let (to_row, from_row) = (to.len() / rows.max(1), from.len() / given.max(1));
    if to_row == 0 || from_row == 0 || width == 0 {
        return;
    }
    for (to, from) in to.chunks_exact_mut(to_row).zip(from.chunks_exact(from_row)) {
        copy_corner((to, to_inner), (from, from_inner), width);
    }
}

#[cfg(test)]
mod tests {
    use super::copy_corner;

    /// The tensor at another shape, with nines where it had nothing.
    fn resized(elements: &[u16], from: &[usize], to: &[usize]) -> Vec<u16> {
        let mut made = vec![9_u16; to.iter().product()];
        let given = bytemuck::cast_slice(elements);
        copy_corner((bytemuck::cast_slice_mut(&mut made), to), (given, from), 2);
        made
    }

    #[test]
    fn what_is_filled_and_cut_is_as_it_was() {
        let elements: Vec<u16> = (1..13).collect();
        let longer = resized(&elements, &[2, 3, 2], &[2, 5, 2]);
        assert_eq!(longer, [1, 2, 3, 4, 5, 6, 9, 9, 9, 9, 7, 8, 9, 10, 11, 12, 9, 9, 9, 9]);
        let more = resized(&longer, &[2, 5, 2], &[3, 5, 2]);
        assert_eq!(more[20..], [9; 10]);
        assert_eq!(resized(&more, &[3, 5, 2], &[2, 3, 2]), elements);
        assert_eq!(resized(&elements, &[2, 3, 2], &[2, 3, 1]), [1, 3, 5, 7, 9, 11]);
        let both = resized(&elements, &[2, 3, 2], &[3, 2, 3]);
        assert_eq!(both, [1, 2, 9, 3, 4, 9, 7, 8, 9, 9, 10, 9, 9, 9, 9, 9, 9, 9]);
        assert_eq!(resized(&[], &[0, 3], &[1, 3]), [9; 3]);
        assert_eq!(resized(&[7], &[], &[]), [7]);
    }
}
