//! How far a value may be from the exact one, computed of operands that are themselves off.

/// Half a unit in the last place of single precision, relative.
pub const SINGLE: f64 = 1.0 / 16_777_216.0;

/// A value, and the most that what a kernel has for it is off.
pub type Near = (f64, f64);

/// What is exact of such values, of three at most, and how far it moves between the ends of their ranges, where it is taken
/// as monotone in each.
pub fn moves(of: &[Near], exact: impl Fn(&[f64]) -> f64) -> Near {
    let mut at = [0.0; 3];
    let at = &mut at[..of.len()];
    let mut moved = |shift: &dyn Fn(usize) -> f64| {
        at.iter_mut().zip(of).enumerate().for_each(|(i, (at, near))| *at = near.0 + shift(i));
        exact(at)
    };
    let value = moved(&|_| -0.0);
    // Of -0, what is exact may still be on either side.
    let still = of.iter().all(|near| near.1 == 0.0 && near.0.to_bits() != (-0.0_f64).to_bits());
    let corners = if still { 0 } else { 1_usize << of.len() };
    let error = (0..corners).fold(0.0_f64, |error, corner| {
        let end = |i: usize| if corner >> i & 1 == 0 { of[i].1 } else { -of[i].1 };
        error.max((moved(&end) - value).abs())
    });
    (value, error)
}
