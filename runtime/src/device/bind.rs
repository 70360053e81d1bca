//! From a launch description to values: what is checked and evaluated before a device is asked.

use super::sys::launch::Map;
use crate::error::{Error, Result};
use graphene_ir::index::{Expr, Var};
use graphene_ir::launch::{Condition, Launch, Param, TensorMap};

/// Bytes of which a tensor map's strides are multiples.
const STRIDE: u64 = 16;

/// Where a tensor lies on the device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub(super) pointer: u64,
    pub(super) bytes: usize,
}

/// The value of a parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Pointer(u64),
    Symbol(i32),
    Map(Map),
}

/// A launch with all expressions evaluated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Values {
    pub(super) grid: u32,
    pub(super) params: Vec<Value>,
}

/// The sizes of a launch's parameters, in bytes, as the kernel must have them.
pub(super) fn sizes(launch: &Launch) -> Vec<usize> {
    let size = |param: &Param| match param {
        Param::Pointer { .. } => 8,
        Param::Symbol(_) => 4,
        Param::TensorMap(_) => 128,
    };
    launch.params.iter().map(size).collect()
}

/// Checks conditions and lengths, and evaluates. Tensors and symbols that the kernel has not are left aside.
pub(super) fn values(
    launch: &Launch,
    tensors: &[(&str, Span)],
    symbols: &[(&str, i64)],
) -> Result<Values> {
    let scope = Scope { tensors, symbols };
    for symbol in &launch.symbols {
        scope.symbol(symbol)?;
    }
    for condition in &launch.conditions {
        scope.check(condition)?;
    }
    let params = launch.params.iter().map(|param| scope.param(param)).collect::<Result<_>>()?;
    let blocks = scope.value(&launch.grid)?;
    let cluster = i64::from(launch.cluster.max(1));
    match u32::try_from(blocks) {
        Ok(grid) if (1..=i64::from(i32::MAX)).contains(&blocks) && blocks % cluster == 0 => {
            Ok(Values { grid, params })
        }
        _ => Err(Error::Grid { blocks, cluster: launch.cluster }),
    }
}

struct Scope<'a> {
    tensors: &'a [(&'a str, Span)],
    symbols: &'a [(&'a str, i64)],
}

impl Scope<'_> {
    fn tensor(&self, name: &str) -> Result<Span> {
        let found = self.tensors.iter().find(|row| row.0 == name);
        found.map(|row| row.1).ok_or_else(|| Error::Unbound { name: name.to_owned() })
    }

    /// A symbol's value, within what the kernel's index expressions were simplified for.
    fn symbol(&self, var: &Var) -> Result<i64> {
        let name = var.name();
        let found = self.symbols.iter().find(|row| row.0 == name);
        let value = found.ok_or_else(|| Error::Unbound { name: name.to_owned() })?.1;
        let max = var.max().unwrap_or(i64::from(i32::MAX)).min(i64::from(i32::MAX));
        if (0..=max).contains(&value) {
            Ok(value)
        } else {
            Err(Error::Symbol { name: name.to_owned(), value, max })
        }
    }

    fn value(&self, expr: &Expr) -> Result<i64> {
        let of = |var: &Var| self.symbols.iter().find(|row| row.0 == var.name()).map(|row| row.1);
        expr.value(&of).ok_or_else(|| Error::Unbound { name: expr.to_string() })
    }

    fn unsigned(&self, expr: &Expr) -> Result<u64> {
        let value = self.value(expr)?;
        u64::try_from(value).map_err(|_| Error::Symbol {
            name: expr.to_string(),
            value,
            max: i64::MAX,
        })
    }

    fn check(&self, condition: &Condition) -> Result<()> {
        let (what, value, divisor) = match condition {
            Condition::Aligned(tensor, bytes) => {
                (format!("the address of {tensor}"), self.tensor(tensor)?.pointer as i64, *bytes)
            }
            Condition::Multiple(expr, divisor) => (expr.to_string(), self.value(expr)?, *divisor),
        };
        if value.checked_rem(divisor) == Some(0) {
            Ok(())
        } else {
            Err(Error::Condition { what, value, divisor })
        }
    }

    fn param(&self, param: &Param) -> Result<Value> {
        Ok(match param {
            Param::Pointer { tensor, scalar, len, written: _ } => {
                let len = i128::from(self.value(len)?);
                let span = self.holding(tensor, len * i128::from(scalar.bytes()))?;
                Value::Pointer(span.pointer)
            }
            Param::Symbol(var) => Value::Symbol(
                i32::try_from(self.symbol(var)?).expect("a symbol's value is checked to fit"),
            ),
            Param::TensorMap(map) => Value::Map(self.map(map)?),
        })
    }

    fn map(&self, map: &TensorMap) -> Result<Map> {
        let all = |exprs: &[Expr]| -> Result<Vec<u64>> {
            exprs.iter().map(|expr| self.unsigned(expr)).collect()
        };
        let (mut sizes, mut strides) = (all(&map.sizes)?, all(&map.strides)?);
        let bytes = i128::from(map.scalar.bytes());
        let steps = std::iter::once(bytes).chain(strides.iter().map(|&stride| i128::from(stride)));
        let last = sizes.iter().zip(steps).try_fold(0, |sum: i128, (&size, step)| {
            sum.checked_add((i128::from(size) - 1).checked_mul(step)?)
        });
        let reached = last.ok_or(Error::TooLarge { what: "a tensor map" })? + bytes;
        let pointer = self.holding(&map.tensor, reached)?.pointer;
        // The driver encodes no empty tensor. Of one, no kernel asks for anything: its map says that there is one element along
        // each axis that has none.
        if sizes.contains(&0) {
            sizes.iter_mut().for_each(|size| *size = (*size).max(1));
            strides.iter_mut().for_each(|stride| *stride = (*stride).max(STRIDE));
        }
        let (window, swizzle) = (map.window.clone(), map.swizzle);
        Ok(Map { pointer, scalar: map.scalar, sizes, strides, window, swizzle })
    }

    /// The tensor's place, if its buffer holds so many bytes.
    fn holding(&self, tensor: &str, needed: i128) -> Result<Span> {
        let span = self.tensor(tensor)?;
        if needed <= span.bytes as i128 {
            Ok(span)
        } else {
            Err(Error::Short { tensor: tensor.to_owned(), needed, bytes: span.bytes })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Map, Span, Value, Values, sizes, values};
    use crate::error::Error;
    use graphene_ir::arch::Arch;
    use graphene_ir::index::{Expr, Var};
    use graphene_ir::launch::{Condition, Launch, Param, TensorMap};
    use graphene_ir::tensor::Scalar;

    /// A kernel on `n` rows of 64 fp16 numbers: a map of them, a pointer to as many floats, and `n`.
    fn launch() -> Launch {
        let n = Var::new("n", Some(1 << 20));
        let rows = Expr::from(&n);
        Launch {
            entry: "k".to_owned(),
            arch: Arch::Sm90a,
            symbols: vec![n.clone()],
            params: vec![
                Param::TensorMap(TensorMap {
                    tensor: "x".to_owned(),
                    scalar: Scalar::F16,
                    sizes: vec![64.into(), rows.clone()],
                    strides: vec![128.into()],
                    window: vec![64, 8],
                    swizzle: 128,
                }),
                Param::Pointer {
                    tensor: "y".to_owned(),
                    scalar: Scalar::F32,
                    len: rows.clone() * 64,
                    written: true,
                },
                Param::Symbol(n),
            ],
            grid: (rows.clone() + 7).div(8) * 2,
            cluster: 2,
            block: 128,
            shared_bytes: 1024,
            dependent: false,
            cooperative: false,
            conditions: vec![Condition::Aligned("x".to_owned(), 16), Condition::Multiple(rows, 4)],
        }
    }

    fn run(x: (u64, usize), y: (u64, usize), n: i64) -> Result<Values, Error> {
        let span = |(pointer, bytes)| Span { pointer, bytes };
        values(&launch(), &[("y", span(y)), ("x", span(x))], &[("unused", 1), ("n", n)])
    }

    #[test]
    fn values_come_in_the_order_of_the_parameters() {
        let values = run((4096, 12 * 128), (8192, 12 * 256), 12).expect("all is given");
        let map = Map {
            pointer: 4096,
            scalar: Scalar::F16,
            sizes: vec![64, 12],
            strides: vec![128],
            window: vec![64, 8],
            swizzle: 128,
        };
        assert_eq!(values.grid, 4);
        let expected = [Value::Map(map), Value::Pointer(8192), Value::Symbol(12)];
        assert_eq!(values.params, expected);
        assert_eq!(sizes(&launch()), [128, 8, 4]);
    }

    /// The driver encodes no map of nothing, such as the operands of a matmul of depth 0.
    #[test]
    fn maps_of_nothing_can_be_encoded() {
        let k = Var::new("n", None);
        let map = TensorMap {
            tensor: "x".to_owned(),
            scalar: Scalar::F16,
            sizes: vec![(&k).into(), 8.into()],
            strides: vec![Expr::from(&k) * 2],
            window: vec![64, 64],
            swizzle: 128,
        };
        let empty = Launch {
            params: vec![Param::TensorMap(map)],
            grid: 2.into(),
            conditions: vec![],
            ..launch()
        };
        let x = Span { pointer: 4096, bytes: 0 };
        let values = values(&empty, &[("x", x)], &[("n", 0)]).expect("an empty tensor");
        let [Value::Map(map)] = &values.params[..] else { panic!("{values:?}") };
        assert_eq!((&map.sizes[..], &map.strides[..]), (&[1, 8][..], &[16][..]));
    }

    #[test]
    fn what_does_not_hold_is_refused() {
        let (x, y) = ((4096, 12 * 128), (8192, 12 * 256));
        assert!(matches!(run((4104, x.1), y, 12), Err(Error::Condition { divisor: 16, .. })));
        assert!(matches!(run(x, y, 10), Err(Error::Condition { value: 10, divisor: 4, .. })));
        assert!(matches!(run((x.0, x.1 - 1), y, 12), Err(Error::Short { needed: 1536, .. })));
        assert!(matches!(run(x, (y.0, y.1 - 1), 12), Err(Error::Short { needed: 3072, .. })));
        assert!(matches!(run(x, y, -4), Err(Error::Symbol { value: -4, .. })));
        assert!(matches!(run(x, y, 1 << 24), Err(Error::Symbol { max: 0x10_0000, .. })));
        assert!(matches!(run(x, y, 0), Err(Error::Grid { blocks: 0, .. })));
        let unbound = values(&launch(), &[], &[("n", 12)]);
        assert_eq!(unbound, Err(Error::Unbound { name: "x".to_owned() }));
        let unbound = values(&launch(), &[], &[]);
        assert_eq!(unbound, Err(Error::Unbound { name: "n".to_owned() }));
        let mut odd = launch();
        odd.grid = 3.into();
        let span = Span { pointer: 4096, bytes: 1 << 20 };
        let odd = values(&odd, &[("x", span), ("y", span)], &[("n", 12)]);
        assert_eq!(odd, Err(Error::Grid { blocks: 3, cluster: 2 }));
    }
}
