//! Attributes by name and value: one description that both writes and reads them.

use super::Printer;
use super::parse::{ParseGraphError, Parser, Reason};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::Graph;
use crate::op::{
    Combine, CoordinateTransform, IndexOrder, NearestMode, PadMode, PoolKind, ResizeMode,
    RnnDirection, SliceAxis, Unary,
};

/// Where attributes go to or come from.
pub(super) struct Codec<'a, 't> {
    end: End<'a, 't>,
    fields: usize,
}

enum End<'a, 't> {
    Print(&'a mut Printer),
    Parse(&'a mut Parser<'t>),
}

/// A value of an attribute.
pub(super) trait Field: Sized {
    /// Writes the value.
    fn print(&self, out: &mut Printer);
    /// Reads a value.
    fn parse(from: &mut Parser<'_>) -> Result<Self, ParseGraphError>;
}

impl<'a, 't> Codec<'a, 't> {
    /// Writes `{name: value, …}`, or nothing where there are no fields.
    pub(super) fn print(printer: &'a mut Printer) -> Self {
        Self { end: End::Print(printer), fields: 0 }
    }

    /// Reads the same.
    pub(super) fn parse(parser: &'a mut Parser<'t>) -> Self {
        Self { end: End::Parse(parser), fields: 0 }
    }

    /// The next field.
    pub(super) fn field<T: Field>(
        &mut self,
        name: &'static str,
        value: &mut T,
    ) -> Result<(), ParseGraphError> {
        let first = self.fields == 0;
        self.fields += 1;
        match &mut self.end {
            End::Print(printer) => {
                printer.put(format_args!("{}{name}: ", if first { " {" } else { ", " }));
                value.print(printer);
            }
            End::Parse(parser) => {
                parser.expect(if first { "{" } else { "," })?;
                parser.keyword(name)?;
                parser.expect(":")?;
                *value = T::parse(parser)?;
            }
        }
        Ok(())
    }

    /// A field that is left out where it is as always. It stands last, so that a reader knows whether it is there.
    pub(super) fn optional<T: Field + Clone + PartialEq>(
        &mut self,
        name: &'static str,
        value: &mut T,
        always: &T,
    ) -> Result<(), ParseGraphError> {
        let left_out = match &mut self.end {
            End::Print(_) => value == always,
            End::Parse(parser) => parser.peek() != Some(','),
        };
        if left_out {
            value.clone_from(always);
            return Ok(());
        }
        self.field(name, value)
    }

    /// The end of the fields.
    pub(super) fn finish(self) -> Result<(), ParseGraphError> {
        match self.end {
            End::Print(printer) if self.fields > 0 => printer.put("}"),
            End::Parse(parser) if self.fields > 0 => parser.expect("}")?,
            End::Print(_) | End::Parse(_) => {}
        }
        Ok(())
    }
}

/// Values that are one word, by `Display` and `FromStr`.
macro_rules! words {
    ($($ty:ty: $what:literal),* $(,)?) => {$(
        impl Field for $ty {
            fn print(&self, out: &mut Printer) {
                out.put(self);
            }
            fn parse(from: &mut Parser<'_>) -> Result<Self, ParseGraphError> {
                from.word_as($what, |word| word.parse().ok())
            }
        }
    )*};
}
words! { usize: "a count", i64: "an integer", bool: "true or false", DType: "an element type" }

/// Enums whose values are one word each.
macro_rules! names {
    ($($ty:ident { $($variant:ident => $text:literal),* $(,)? })*) => {$(
        impl Field for $ty {
            fn print(&self, out: &mut Printer) {
                out.put(match self { $(Self::$variant => $text),* });
            }
            fn parse(from: &mut Parser<'_>) -> Result<Self, ParseGraphError> {
                from.word_as(stringify!($ty), |word| match word {
                    $($text => Some(Self::$variant),)*
                    _ => None,
                })
            }
        }
    )*};
}
names! {
    PadMode { Constant => "constant", Reflect => "reflect", Edge => "edge", Wrap => "wrap" }
    Combine { Replace => "replace", Add => "add", Mul => "mul", Min => "min", Max => "max" }
    IndexOrder { RowMajor => "row_major", ColumnMajor => "column_major" }
    RnnDirection { Forward => "forward", Reverse => "reverse", Bidirectional => "bidirectional" }
    NearestMode {
        RoundPreferFloor => "round_prefer_floor",
        RoundPreferCeil => "round_prefer_ceil",
        Floor => "floor",
        Ceil => "ceil",
    }
    CoordinateTransform {
        HalfPixel => "half_pixel",
        HalfPixelSymmetric => "half_pixel_symmetric",
        PytorchHalfPixel => "pytorch_half_pixel",
        AlignCorners => "align_corners",
        Asymmetric => "asymmetric",
        TfHalfPixelForNn => "tf_half_pixel_for_nn",
        CropAndResize => "tf_crop_and_resize",
    }
}

impl Field for f32 {
    fn print(&self, out: &mut Printer) {
        if self.is_nan() {
            out.put(format_args!("{:#x}", self.to_bits()));
        } else {
            // The shorter of the two, both exact.
            out.put(format_args!("{self:?}"));
        }
    }

    fn parse(from: &mut Parser<'_>) -> Result<Self, ParseGraphError> {
        from.word_as("a number", |word| match word.strip_prefix("0x") {
            Some(bits) => u32::from_str_radix(bits, 16).ok().map(f32::from_bits),
            None => word.parse().ok(),
        })
    }
}

impl Field for Dim {
    fn print(&self, out: &mut Printer) {
        out.put(self);
    }

    fn parse(from: &mut Parser<'_>) -> Result<Self, ParseGraphError> {
        from.dim()
    }
}

impl<T: Field> Field for Option<T> {
    fn print(&self, out: &mut Printer) {
        match self {
            Some(value) => value.print(out),
            None => out.put("none"),
        }
    }

    fn parse(from: &mut Parser<'_>) -> Result<Self, ParseGraphError> {
        if from.eat_keyword("none") { Ok(None) } else { T::parse(from).map(Some) }
    }
}

impl<T: Field> Field for Vec<T> {
    fn print(&self, out: &mut Printer) {
        out.put("[");
        for (i, value) in self.iter().enumerate() {
            out.put(if i > 0 { ", " } else { "" });
            value.print(out);
        }
        out.put("]");
    }

    fn parse(from: &mut Parser<'_>) -> Result<Self, ParseGraphError> {
        let mut values = Vec::new();
        from.expect("[")?;
        if from.eat("]") {
            return Ok(values);
        }
        loop {
            values.push(T::parse(from)?);
            if from.eat("]") {
                return Ok(values);
            }
            from.expect(",")?;
        }
    }
}

impl<A: Field, B: Field> Field for (A, B) {
    fn print(&self, out: &mut Printer) {
        out.put("(");
        self.0.print(out);
        out.put(", ");
        self.1.print(out);
        out.put(")");
    }

    fn parse(from: &mut Parser<'_>) -> Result<Self, ParseGraphError> {
        from.expect("(")?;
        let first = A::parse(from)?;
        from.expect(",")?;
        let second = B::parse(from)?;
        from.expect(")")?;
        Ok((first, second))
    }
}

impl Field for SliceAxis {
    fn print(&self, out: &mut Printer) {
        let Self { axis, start, len, step } = self;
        out.put(format_args!("{{axis: {axis}, start: {start}, len: {len}, step: {step}}}"));
    }

    fn parse(from: &mut Parser<'_>) -> Result<Self, ParseGraphError> {
        let mut slice = Self { axis: 0, start: Dim::from(0), len: Dim::from(0), step: 1 };
        let mut codec = Codec::parse(from);
        codec.field("axis", &mut slice.axis)?;
        codec.field("start", &mut slice.start)?;
        codec.field("len", &mut slice.len)?;
        codec.field("step", &mut slice.step)?;
        codec.finish()?;
        Ok(slice)
    }
}

impl Field for PoolKind {
    fn print(&self, out: &mut Printer) {
        match self {
            Self::Max { indices: None } => out.put("max"),
            Self::Max { indices: Some(order) } => {
                out.put("max_with_indices ");
                order.print(out);
            }
            Self::Average { include_pad: false } => out.put("average"),
            Self::Average { include_pad: true } => out.put("average_with_padding"),
            Self::Lp { p } => out.put(format_args!("lp {p}")),
        }
    }

    fn parse(from: &mut Parser<'_>) -> Result<Self, ParseGraphError> {
        let at = from.here();
        match from.word() {
            "max" => Ok(Self::Max { indices: None }),
            "max_with_indices" => Ok(Self::Max { indices: Some(IndexOrder::parse(from)?) }),
            "average" => Ok(Self::Average { include_pad: false }),
            "average_with_padding" => Ok(Self::Average { include_pad: true }),
            "lp" => Ok(Self::Lp { p: i64::parse(from)? }),
            _ => Err(from.error_at(at, Reason::Expected("a kind of pooling"))),
        }
    }
}

impl Field for ResizeMode {
    fn print(&self, out: &mut Printer) {
        match self {
            Self::Nearest(mode) => {
                out.put("nearest ");
                mode.print(out);
            }
            Self::Linear => out.put("linear"),
            Self::Cubic { a, exclude_outside } => {
                out.put("cubic ");
                (*a, *exclude_outside).print(out);
            }
        }
    }

    fn parse(from: &mut Parser<'_>) -> Result<Self, ParseGraphError> {
        let at = from.here();
        match from.word() {
            "nearest" => Ok(Self::Nearest(NearestMode::parse(from)?)),
            "linear" => Ok(Self::Linear),
            "cubic" => {
                let (a, exclude_outside) = Field::parse(from)?;
                Ok(Self::Cubic { a, exclude_outside })
            }
            _ => Err(from.error_at(at, Reason::Expected("a mode of interpolation"))),
        }
    }
}

impl Field for Unary {
    fn print(&self, out: &mut Printer) {
        out.put(self.info().name);
        let mut unary = *self;
        let mut codec = Codec::print(out);
        super::ops::unary_attributes(&mut unary, &mut codec)
            .and_then(|()| codec.finish())
            .expect("only reading fails");
    }

    fn parse(from: &mut Parser<'_>) -> Result<Self, ParseGraphError> {
        let mut unary = from.word_as("a pointwise function", |word| {
            Unary::ALL.iter().copied().find(|unary| unary.info().name == word)
        })?;
        let mut codec = Codec::parse(from);
        super::ops::unary_attributes(&mut unary, &mut codec)?;
        codec.finish()?;
        Ok(unary)
    }
}

impl Field for Graph {
    fn print(&self, out: &mut Printer) {
        out.put("{\n");
        out.indent += 1;
        out.graph(self);
        out.indent -= 1;
        out.start_line();
        out.put("}");
    }

    fn parse(from: &mut Parser<'_>) -> Result<Self, ParseGraphError> {
        from.expect("{")?;
        let graph = from.body()?;
        from.expect("}")?;
        Ok(graph)
    }
}

impl<T: Field> Field for Box<T> {
    fn print(&self, out: &mut Printer) {
        T::print(self, out);
    }

    fn parse(from: &mut Parser<'_>) -> Result<Self, ParseGraphError> {
        T::parse(from).map(Box::new)
    }
}
