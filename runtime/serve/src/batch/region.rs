//! Copies between row-major arrays of different shapes.

/// Copies the elements whose index is within `shape` from one array to another of its own shape, both from their first
/// element on. Shapes have the same rank; sizes are in elements of `element` bytes.
pub(super) fn copy_region(
    (from, from_shape): (&[u8], &[usize]),
    (to, to_shape): (&mut [u8], &[usize]),
    shape: &[usize],
    element: usize,
) {
    // The innermost axes that are whole in both are one run.
    let mut run = element;
    let mut outer = shape.len();
    while outer > 0 {
        outer -= 1;
        run *= shape[outer];
        if shape[outer] != from_shape[outer] || shape[outer] != to_shape[outer] {
            break;
        }
    }
    if run == 0 {
        return;
    }
    let stride =
        |shape: &[usize], axis: usize| element * shape[axis + 1..].iter().product::<usize>();
    let strides: Vec<(usize, usize)> =
        (0..outer).map(|axis| (stride(from_shape, axis), stride(to_shape, axis))).collect();
    let count: usize = shape[..outer].iter().product();
    for number in 0..count {
        let (mut rest, mut source, mut target) = (number, 0, 0);
        for axis in (0..outer).rev() {
            let index = rest % shape[axis];
            rest /= shape[axis];
            source += index * strides[axis].0;
            target += index * strides[axis].1;
        }
        to[target..target + run].copy_from_slice(&from[source..source + run]);
    }
}

#[cfg(test)]
mod tests {
    use super::copy_region;

    #[test]
    fn regions_are_copied_by_their_indices() {
        let shapes: [([usize; 3], [usize; 3]); 6] = [
            ([2, 3, 4], [2, 3, 4]),
            ([2, 3, 4], [3, 5, 4]),
            ([2, 3, 4], [2, 3, 7]),
            ([1, 3, 1], [4, 4, 4]),
            ([0, 3, 4], [2, 3, 4]),
            ([2, 0, 4], [2, 3, 4]),
        ];
        for (small, large) in shapes {
            let source: Vec<u8> = (1..=small.iter().product::<usize>() as u8).collect();
            let mut target = vec![0; large.iter().product()];
            copy_region((&source, &small), (&mut target, &large), &small, 1);
            for (number, &value) in target.iter().enumerate() {
                let index = [
                    number / (large[1] * large[2]),
                    number / large[2] % large[1],
                    number % large[2],
                ];
                let inside = index.iter().zip(&small).all(|(index, size)| index < size);
                let flat = (index[0] * small[1] + index[1]) * small[2] + index[2];
                assert_eq!(value, if inside { source[flat] } else { 0 }, "{small:?} in {large:?}");
            }
            let mut back = vec![0; source.len()];
            copy_region((&target, &large), (&mut back, &small), &small, 1);
            assert_eq!(back, source);
        }
    }
}
