//! Expressions in CuTe's notation and function names, such as
//! `composition((6,2):(8,2), (4,3):(3,1))`.
//!
//! ```text
//! expr    = pair { "o" pair }                  composition; Sw<..> or a layout, o offset o layout
//! pair    = primary [ ":" primary ]            shape:stride
//! primary = integer | integer "@" axis         a number, a step along an axis
//!         | "_" | "(" list ")"                 a shape or coordinate, or modes of a layout
//!         | "<" list ">"                       a tiler
//!         | "Sw<" bits "," base "," shift ">"  a swizzle; S<..> is the same
//!         | name "(" list ")"                  a function of the table below
//!         | name                               a fragment of an instruction
//! list    = [ expr { "," expr } ]
//! ```
//!
//! Where a function takes a tiler, an integer or a shape stands for stride 1. `_4` is read as 4,
//! which is how CuTe prints an integer known at compile time.

mod cursor;
mod functions;

use std::fmt;

use graphene_ir::fragment::{self, Fragment};
use graphene_ir::layout::{Composed, IntTuple, Layout, MAX_DEPTH, Stride, Swizzle, Tiler};

use self::cursor::Cursor;
use self::functions::{FUNCTIONS, Function, eval_composition};

/// Why an expression has no value. Errors of notation, and arguments that a function does not take, lie somewhere in the
/// text: `at`, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Text does not follow the notation.
    #[error("expected {expected}")]
    Syntax {
        /// Where.
        at: usize,
        /// What would have been accepted there.
        expected: &'static str,
    },
    /// A call of a function that does not exist.
    #[error("unknown function `{name}`")]
    UnknownFunction {
        /// Where its name stands.
        at: usize,
        /// The name.
        name: String,
    },
    /// A call of a function with arguments that it does not take.
    #[error("wrong arguments; usage: {usage}")]
    Arguments {
        /// Where the call or the offending part stands.
        at: usize,
        /// The function's signature.
        usage: &'static str,
    },
    /// The algebra has no answer.
    #[error(transparent)]
    Algebra(#[from] graphene_ir::Error),
}

impl Error {
    /// The byte offset in the text where an error of notation lies; none for errors of algebra.
    pub fn position(&self) -> Option<usize> {
        match self {
            Error::Syntax { at, .. }
            | Error::UnknownFunction { at, .. }
            | Error::Arguments { at, .. } => Some(*at),
            Error::Algebra(_) => None,
        }
    }
}

type Result<T> = std::result::Result<T, Error>;

/// What an expression evaluates to. `Display` prints it in the notation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A number, shape, stride or coordinate.
    Ints(IntTuple<Stride>),
    /// A layout.
    Layout(Layout),
    /// A swizzle.
    Swizzle(Swizzle),
    /// A layout after which there is a swizzle, or an offset and a layout.
    Composed(Composed),
    /// A tiler.
    Tiler(Tiler),
}

impl Value {
    /// The numbers that this is.
    pub fn ints(&self) -> Option<IntTuple> {
        if let Value::Ints(ints) = self { ints.map(&Stride::number) } else { None }
    }

    /// The layout that this is.
    fn layout(self) -> Option<Layout> {
        if let Value::Layout(layout) = self { Some(layout) } else { None }
    }

    /// The tiler that this stands for.
    fn tiler(&self) -> Option<Tiler> {
        match self {
            Value::Ints(_) => Some(Tiler::from(&self.ints()?)),
            Value::Layout(layout) => Some(Tiler::Layout(layout.clone())),
            Value::Tiler(tiler) => Some(tiler.clone()),
            Value::Swizzle(_) | Value::Composed(_) => None,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Ints(ints) => ints.fmt(f),
            Value::Layout(layout) => layout.fmt(f),
            Value::Swizzle(swizzle) => swizzle.fmt(f),
            Value::Composed(composed) => composed.fmt(f),
            Value::Tiler(tiler) => tiler.fmt(f),
        }
    }
}

/// An expression, parsed. Its nesting is at most [`MAX_DEPTH`].
#[derive(Debug, Clone)]
struct Expr {
    at: usize,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Int(Stride),
    Whole,
    Swizzle([i64; 3]),
    Fragment(&'static Fragment),
    Tuple(Vec<Expr>),
    Tiler(Vec<Expr>),
    Pair(Box<Expr>, Box<Expr>),
    Chain(Vec<Expr>),
    Call(&'static Function, Vec<Expr>),
}

/// Parses and evaluates an expression.
///
/// # Errors
/// [`Error`], with a [`position`](Error::position) in `text` unless it is one of the algebra.
pub fn evaluate(text: &str) -> Result<Value> {
    parse(text)?.evaluate()
}

fn parse(text: &str) -> Result<Expr> {
    let mut parser = Parser { cursor: Cursor::new(text), depth: 0 };
    let expr = parser.expr()?;
    match parser.cursor.rest() {
        "" => Ok(expr),
        _ => Err(parser.expected("the end, `:` or `o`")),
    }
}

struct Parser<'a> {
    cursor: Cursor<'a>,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn expected(&self, expected: &'static str) -> Error {
        Error::Syntax { at: self.cursor.next(), expected }
    }

    /// The word here, unless it is a number.
    fn word(&self) -> &'a str {
        let word = self.cursor.word();
        if word.starts_with(|c: char| c.is_ascii_digit()) { "" } else { word }
    }

    fn expr(&mut self) -> Result<Expr> {
        if self.depth >= MAX_DEPTH {
            return Err(self.expected("fewer levels of nesting"));
        }
        self.depth += 1;
        let mut chain = vec![self.pair()?];
        while self.cursor.eat_word("o") {
            chain.push(self.pair()?);
        }
        self.depth -= 1;
        match <[Expr; 1]>::try_from(chain) {
            Ok([single]) => Ok(single),
            Err(chain) => {
                let at = chain.first().map_or(0, |first| first.at);
                Ok(Expr { at, kind: Kind::Chain(chain) })
            }
        }
    }

    fn pair(&mut self) -> Result<Expr> {
        let shape = self.primary()?;
        if !self.cursor.eat(":") {
            return Ok(shape);
        }
        let stride = self.primary()?;
        Ok(Expr { at: shape.at, kind: Kind::Pair(Box::new(shape), Box::new(stride)) })
    }

    fn primary(&mut self) -> Result<Expr> {
        let at = self.cursor.next();
        let kind = if self.cursor.eat("(") {
            Kind::Tuple(self.list(")", "`,` or `)`")?)
        } else if self.cursor.eat("<") {
            Kind::Tiler(self.list(">", "`,` or `>`")?)
        } else {
            match self.word() {
                "" => Kind::Int(self.step()?),
                "_" => {
                    self.cursor.eat("_");
                    Kind::Whole
                }
                word if word[1..].starts_with(|c: char| c.is_ascii_digit())
                    && word.starts_with('_') =>
                {
                    self.cursor.eat("_");
                    Kind::Int(self.step()?)
                }
                "S" | "Sw" => self.swizzle()?,
                word => match fragment::ALL.iter().find(|fragment| fragment.0 == word) {
                    Some((name, fragment)) => {
                        self.cursor.eat(name);
                        Kind::Fragment(fragment)
                    }
                    None => self.call()?,
                },
            }
        };
        Ok(Expr { at, kind })
    }

    fn list(&mut self, close: &str, expected: &'static str) -> Result<Vec<Expr>> {
        if self.cursor.eat(close) {
            return Ok(Vec::new());
        }
        let mut items = vec![self.expr()?];
        while !self.cursor.eat(close) {
            if !self.cursor.eat(",") {
                return Err(self.expected(expected));
            }
            items.push(self.expr()?);
        }
        Ok(items)
    }

    /// `4` or `64@1`
    fn step(&mut self) -> Result<Stride> {
        let by = self.integer()?;
        if !self.cursor.eat("@") {
            return Ok(Stride::from(by));
        }
        let at = self.cursor.next();
        let axis = usize::try_from(self.integer()?);
        axis.map(|axis| Stride::along(axis, by))
            .map_err(|_| Error::Syntax { at, expected: "an axis, from 0 on" })
    }

    fn integer(&mut self) -> Result<i64> {
        let rest = self.cursor.rest();
        let digits = rest.strip_prefix('-').unwrap_or(rest);
        let sign = rest.len() - digits.len();
        let count = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        let (found, end) = (&rest[..sign + count], sign + count);
        if count == 0 {
            return Err(self.expected("an integer, a tuple, a layout or a function"));
        }
        let value = found.parse().map_err(|_| self.expected("an integer of 64 bits"))?;
        self.cursor.skip(end);
        Ok(value)
    }

    fn swizzle(&mut self) -> Result<Kind> {
        self.cursor.skip(self.word().len());
        let mut parameters = [0; 3];
        for (i, parameter) in parameters.iter_mut().enumerate() {
            if !self.cursor.eat(if i == 0 { "<" } else { "," }) {
                return Err(self.expected("a swizzle such as S<3,4,3>"));
            }
            *parameter = self.integer()?;
        }
        if !self.cursor.eat(">") {
            return Err(self.expected("`>`"));
        }
        Ok(Kind::Swizzle(parameters))
    }

    fn call(&mut self) -> Result<Kind> {
        let (at, name) = (self.cursor.next(), self.word());
        let Some(function) = FUNCTIONS.iter().find(|function| function.name == name) else {
            return Err(Error::UnknownFunction { at, name: name.to_string() });
        };
        self.cursor.skip(name.len());
        if !self.cursor.eat("(") {
            return Err(self.expected("`(`"));
        }
        Ok(Kind::Call(function, self.list(")", "`,` or `)`")?))
    }
}

impl Expr {
    fn evaluate(&self) -> Result<Value> {
        let values = |items: &[Expr]| items.iter().map(Expr::evaluate).collect::<Result<Vec<_>>>();
        let answer = |found: Option<graphene_ir::Result<Value>>, wrong| Ok(found.ok_or(wrong)??);
        let wrong = |usage| Error::Arguments { at: self.at, usage };
        match &self.kind {
            Kind::Int(value) => Ok(Value::Ints(IntTuple::Int(value.clone()))),
            Kind::Whole => Ok(Value::Tiler(Tiler::Whole)),
            Kind::Swizzle([bits, base, shift]) => {
                Ok(Value::Swizzle(Swizzle::new(*bits, *base, *shift)?))
            }
            Kind::Fragment(fragment) => Ok(Value::Layout(fragment.layout().clone())),
            Kind::Tuple(items) => {
                answer(tuple(values(items)?), wrong("(a,b): integers, or layouts, or tilers"))
            }
            Kind::Tiler(items) => {
                let tilers: Option<Vec<_>> = values(items)?.iter().map(Value::tiler).collect();
                let tilers = tilers.ok_or_else(|| wrong("<a,b>: layouts, shapes or tilers"))?;
                Ok(Value::Tiler(Tiler::Modes(tilers)))
            }
            Kind::Pair(shape, stride) => match (shape.evaluate()?.ints(), stride.evaluate()?) {
                (Some(shape), Value::Ints(stride)) => {
                    Ok(Value::Layout(Layout::new(&shape, &stride)?))
                }
                (_, _) => Err(wrong("shape:stride, both of integers")),
            },
            Kind::Chain(items) => answer(chain(values(items)?), wrong("layout o layout")),
            Kind::Call(function, args) => {
                answer((function.eval)(&values(args)?), wrong(function.usage))
            }
        }
    }
}

fn tuple(items: Vec<Value>) -> Option<graphene_ir::Result<Value>> {
    let int = |item: &Value| if let Value::Ints(ints) = item { Some(ints.clone()) } else { None };
    if let Some(ints) = items.iter().map(int).collect() {
        return Some(Ok(Value::Ints(IntTuple::Tuple(ints))));
    }
    if let Some(layouts) = items.iter().cloned().map(Value::layout).collect() {
        return Some(Layout::tuple(layouts).map(Value::Layout));
    }
    if !items.iter().any(|item| matches!(item, Value::Tiler(_))) {
        return None;
    }
    let tilers: Option<_> = items.iter().map(Value::tiler).collect();
    Some(Ok(Value::Tiler(Tiler::Modes(tilers?))))
}

/// Composes from the right; an integer counts as the offset between what stands beside it.
fn chain(mut items: Vec<Value>) -> Option<graphene_ir::Result<Value>> {
    let mut right = items.pop()?;
    while let Some(left) = items.pop() {
        let arguments = match left {
            Value::Ints(_) => vec![items.pop()?, left, right],
            Value::Layout(_) | Value::Swizzle(_) | Value::Composed(_) | Value::Tiler(_) => {
                vec![left, right]
            }
        };
        match eval_composition(&arguments)? {
            Ok(value) => right = value,
            Err(error) => return Some(Err(error)),
        }
    }
    Some(Ok(right))
}
