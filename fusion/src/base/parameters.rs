//! Parameters of templates, and their text.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Parameters of a template: the first two kinds for Hopper. Prints as `gemm columns=192 consumers=2 strips=1 ping_pong=0 stages=4
/// cluster=1 split=1`, `fmha consumers=2 keys=128 stages=2` or `mlp rows=128`, and is read back from that; or as `folds columns=128`, which
/// no tuning tries.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Parameters {
    /// Of [`Gemm`](graphene_ir::template::gemm::Gemm), which says what each of them is.
    Gemm(GemmParameters),
    /// Of [`Fmha`](graphene_ir::template::fmha::Fmha).
    Fmha(FmhaParameters),
    /// Of [`Mlp`](graphene_ir::template::mlp::Mlp), on any GPU.
    Mlp(MlpParameters),
    /// Of [`Folds`](graphene_ir::template::folds::Folds), on any GPU.
    Folds(FoldsParameters),
}

/// Parameters of a matrix product.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct GemmParameters {
    /// Columns of a tile.
    pub columns: i64,
    /// Warpgroups that multiply.
    pub consumers: i64,
    /// How many times 64 rows each of them has.
    pub strips: i64,
    /// Whether they ping-pong: one computes its epilogue while the other multiplies.
    pub ping_pong: bool,
    /// Pipeline stages.
    pub stages: i64,
    /// Blocks of a cluster.
    pub cluster: i64,
    /// Into how many parts the depth is split.
    pub split: i64,
}

/// Parameters of attention.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FmhaParameters {
    /// Warpgroups that multiply, with 64 queries each.
    pub consumers: i64,
    /// Keys of a tile.
    pub keys: i64,
    /// Pipeline stages of keys and values.
    pub stages: i64,
}

/// Parameters of a chain of layers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct MlpParameters {
    /// Rows of a block, or as many of them as it has room for.
    pub rows: i64,
}

/// Parameters of functions of rows whose length is a symbol.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FoldsParameters {
    /// The length that they are planned to have, for which threads are chosen.
    pub columns: i64,
}

/// Text that is no parameters.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` are no parameters of a template")]
pub struct NoParameters(pub String);

impl fmt::Display for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Gemm(of) => {
                let GemmParameters {
                    columns,
                    consumers,
                    strips,
                    ping_pong,
                    stages,
                    cluster,
                    split,
                } = of;
                let ping_pong = i64::from(ping_pong);
                write!(f, "gemm columns={columns} consumers={consumers} strips={strips} ")?;
                write!(f, "ping_pong={ping_pong} stages={stages} cluster={cluster} split={split}")
            }
            Self::Fmha(FmhaParameters { consumers, keys, stages }) => {
                write!(f, "fmha consumers={consumers} keys={keys} stages={stages}")
            }
            Self::Mlp(MlpParameters { rows }) => write!(f, "mlp rows={rows}"),
            Self::Folds(FoldsParameters { columns }) => write!(f, "folds columns={columns}"),
        }
    }
}

impl FromStr for Parameters {
    type Err = NoParameters;
    fn from_str(text: &str) -> Result<Self, NoParameters> {
        let no = || NoParameters(text.to_owned());
        let mut words = text.split(' ');
        let template = words.next().ok_or_else(no)?;
        let mut values = BTreeMap::new();
        for word in words {
            let (name, value) = word.split_once('=').ok_or_else(no)?;
            let value: i64 = value.parse().map_err(|_| no())?;
            // A kernel's checks multiply these.
            if !(0..=1 << 16).contains(&value) || values.insert(name, value).is_some() {
                return Err(no());
            }
        }
        let mut take = |name: &str| values.remove(name).ok_or_else(no);
        let parameters = match template {
            "gemm" => Self::Gemm(GemmParameters {
                columns: take("columns")?,
                consumers: take("consumers")?,
                strips: take("strips")?,
                ping_pong: take("ping_pong")? != 0,
                stages: take("stages")?,
                cluster: take("cluster")?,
                split: take("split")?,
            }),
            "fmha" => Self::Fmha(FmhaParameters {
                consumers: take("consumers")?,
                keys: take("keys")?,
                stages: take("stages")?,
            }),
            "mlp" => Self::Mlp(MlpParameters { rows: take("rows")? }),
            _ => return Err(no()),
        };
        if values.is_empty() { Ok(parameters) } else { Err(no()) }
    }
}
