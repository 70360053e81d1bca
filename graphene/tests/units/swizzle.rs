//! Of `emit::swizzle`, whose items are private to the crate.

use super::{Expr, Swizzle, Swizzled};
use crate::index::Var;

#[test]
fn parts_add_up() -> crate::Result<()> {
    let (i, j) = (Var::new("i", Some(7)), Var::new("j", Some(5)));
    let (mut whole, mut parted) = (0, 0);
    for swizzle in [(3, 4, 3), (2, 4, 3), (1, 4, 3), (3, 3, 3), (2, 3, -4)] {
        let swizzle = Swizzle::new(swizzle.0, swizzle.1, swizzle.2)?;
        for steps in [(8, 64), (16, 4096), (2, 1024), (128, 16), (1024, 8192), (96, 8)] {
            for start in [0, 8, 1500] {
                let offset = Expr::from(&i) * steps.0 + Expr::from(&j) * steps.1 + start;
                let Swizzled { outside, inside } = Swizzled::of(swizzle, &offset)?;
                *if inside.is_some() { &mut parted } else { &mut whole } += 1;
                for at in 0..48 {
                    let value = |expr: &Expr| {
                        expr.value(&|var| Some(if *var == i { at % 8 } else { at / 8 }))
                    };
                    let within = match inside.as_ref().map(value) {
                        Some(within) => swizzle.at(within.ok_or(crate::Error::Overflow)?)?,
                        None => 0,
                    };
                    let expected = value(&offset).map(|offset| swizzle.at(offset));
                    assert_eq!(
                        value(&outside).map(|outside| Ok(outside + within)),
                        expected,
                        "{swizzle:?} of {offset}: {outside} and {inside:?}"
                    );
                }
            }
        }
    }
    assert!(whole > 10 && parted > 10, "{whole} and {parted}: both ways are tried");
    Ok(())
}
