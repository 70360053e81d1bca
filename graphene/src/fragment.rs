//! Fragments: which elements of a tile each thread of a group holds, by name.
//!
//! A fragment is a layout `(thread, value) -> coordinate`, of rows along axis 0 and columns along axis 1. The modes of its values
//! are the dimensions of an operand as one thread sees it. What the PTX manual draws of an instruction's registers stands here
//! and nowhere else: the atoms' meanings go by it, and `graphene-opt layout` draws it.

use std::sync::LazyLock;

use crate::Layout;

/// Which elements of a tile each thread of a group holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fragment {
    layout: Layout,
    /// How many values a thread holds.
    values: usize,
    /// For each thread, where each of them lies, the first mode of values fastest.
    places: Vec<[usize; 2]>,
    /// The rows and columns of the tile.
    shape: [usize; 2],
}

macro_rules! fragments {
    ($($(#[$doc:meta])* $name:ident = $layout:literal;)*) => {
        $($(#[$doc])* pub static $name: LazyLock<Fragment> = LazyLock::new(|| read($layout));)*

        /// All that have a name, but the accumulators of [`wgmma_c`].
        pub static ALL: &[(&str, &LazyLock<Fragment>)] = &[$((stringify!($name), &$name)),*];
    };
}

fragments! {
    /// Of `mma`'s accumulator, 16×8: two rows eight apart, in each two neighbours. So is a left
    /// operand of 16-bit values that is eight deep.
    MMA_16X8_C = "((4,8),(2,2)):((2@1,1@0),(8@0,1@1))";
    /// Of its left operand of 16-bit values, 16×16: likewise in both eights of columns.
    MMA_16X16_A = "((4,8),(2,2,2)):((2@1,1@0),(8@0,8@1,1@1))";
    /// Of its right operand, 16×8: two neighbours of a column, and two eight further down.
    MMA_16X8_B = "((4,8),(2,2)):((2@0,1@1),(8@0,1@0))";
    /// Of one that is eight deep, 8×8.
    MMA_8X8_B = "((4,8),2):((2@0,1@1),1@0)";
    /// Of the left operand in TF32, 16×8: rows eight apart, columns four apart.
    MMA_16X8_A_TF32 = "((4,8),(2,2)):((1@1,1@0),(8@0,4@1))";
    /// Of the right one, 8×8.
    MMA_8X8_B_TF32 = "((4,8),2):((1@0,1@1),4@0)";
    /// Of a matrix of `ldmatrix` and `stmatrix`, 8×8: two neighbours of a row.
    MATRIX_8X8 = "((4,8),2):((2@1,1@0),1@1)";
    /// Likewise transposed: two neighbours of a column.
    MATRIX_8X8_TRANS = "((4,8),2):((2@0,1@1),1@0)";
    /// Of a quad pair's accumulator, 8×8: two rows of two pairs of columns.
    QUAD_8X8_C = "((2,2,2),(2,(2,2))):((1@0,2@1,4@0),(2@0,(1@1,4@1)))";
    /// Of its left operand, 8×4: a row.
    QUAD_8X4_A = "(8,4):(1@0,1@1)";
    /// Of its right one, 4×8: a column.
    QUAD_4X8_B = "(8,4):(1@1,1@0)";
    /// Of a right one whose columns are contiguous: four neighbours of a row.
    QUAD_4X8_B_ROW = "((4,2),4):((1@0,4@1),1@1)";
    /// Of its accumulator by pairs of columns four apart, then rows two apart, then neighbours.
    QUAD_8X8_C_PAIRS = "((2,2,2),(2,2,2)):((1@0,2@1,4@0),(4@1,2@0,1@1))";
    /// Of a left operand of `wgmma` in registers, 64×16: each warp's as of `mma`.
    WGMMA_64X16_A = "((4,8,4),(2,2,2)):((2@1,1@0,16@0),(8@0,8@1,1@1))";
}

/// Of the accumulator of `wgmma`, 64 rows and so many eights of columns, up to 32.
pub fn wgmma_c(eights: i64) -> Option<&'static Fragment> {
    static BY_EIGHTS: LazyLock<Vec<Fragment>> = LazyLock::new(|| {
        let of = |n| format!("((4,8,4),(2,{n},2)):((2@1,1@0,16@0),(8@0,8@1,1@1))");
        (1..=32).map(|n| read(&of(n))).collect()
    });
    BY_EIGHTS.get(usize::try_from(eights - 1).ok()?)
}

fn read(text: &str) -> Fragment {
    let layout: Layout = text.parse().expect("fragments are written in the notation of layouts");
    Fragment::of(layout).expect("fragments are layouts of threads and values")
}

impl Fragment {
    /// The fragment that a layout describes, if it is one of threads and values to coordinates.
    pub fn of(layout: Layout) -> Option<Fragment> {
        let [threads, values] = layout.modes() else { return None };
        let mut places = Vec::new();
        for thread in 0..threads.size() {
            for value in 0..values.size() {
                let at = threads.at(&thread).and_then(|at| at.plus(&values.at(&value)?));
                let mut place = [0; 2];
                for (axis, &at) in at.ok()?.steps() {
                    *place.get_mut(axis)? = usize::try_from(at).ok()?;
                }
                places.push(place);
            }
        }
        let shape = [0, 1].map(|axis| places.iter().map(|at| at[axis] + 1).max().unwrap_or(0));
        let values = usize::try_from(values.size()).ok()?;
        Some(Fragment { layout, values, places, shape })
    }

    /// As a layout `(thread, value) -> coordinate`.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The rows and columns of the tile.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// The rows and columns of the elements that a thread holds, the first mode of its values fastest.
    pub fn places(&self, thread: usize) -> &[[usize; 2]] {
        &self.places[thread * self.values..][..self.values]
    }
}
