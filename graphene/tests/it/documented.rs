//! Results in CuTe's form, as rows: the examples of `01_layout.md` and `02_layout_algebra.md` and
//! its figures, the cases of CuTe's unit tests where a composition over-runs or truncates, and
//! swizzled layouts as CuTe's headers define them.

use graphene_ir::layout::expr;

fn check_rows(rows: &[(&str, &str)]) {
    for (expression, expected) in rows {
        match expr::evaluate(expression) {
            Ok(value) => assert_eq!(value.to_string(), *expected, "{expression}"),
            Err(error) => panic!("{expression}: {error}"),
        }
    }
}

#[test]
#[rustfmt::skip]
fn basics() {
    check_rows(&[
        ("make_layout((4,(3,6)))",                        "(4,(3,6)):(1,(4,12))"),
        ("make_layout((2,4),(12,1))",                     "(2,4):(12,1)"),
        ("make_layout(make_layout(3,1),make_layout(4,3))", "(3,4):(1,3)"),
        ("make_layout((3,4):(1,3),(4,3):(3,1))",          "((3,4),(4,3)):((1,3),(3,1))"),
        ("make_layout(make_layout(3:1))",                 "((3)):((1))"),
        ("flatten(((2,3),(5,7)):((1,2),(6,30)))",         "(2,3,5,7):(1,2,6,30)"),
        ("idx2crd(16,(3,(2,3)))",                         "(1,(1,2))"),
        ("crd2idx(16,(3,(2,3)),(3,(12,1)))",              "17"),
        ("crd2idx((1,5),(3,(2,3)),(3,(12,1)))",           "17"),
        ("crd2idx((1,(1,2)),(3,(2,3)),(3,(12,1)))",       "17"),
        ("size((2,(2,2)):(4,(2,1)))",                     "8"),
        ("cosize((2,4):(12,1))",                          "16"),
        ("rank((2,(2,2)):(4,(2,1)))",                     "2"),
        ("depth((2,(2,2)):(4,(2,1)))",                    "2"),
        ("shape((2,(2,2)):(4,(2,1)))",                    "(2,(2,2))"),
        ("stride((2,(2,2)):(4,(2,1)))",                   "(4,(2,1))"),
    ]);
}

#[test]
#[rustfmt::skip]
fn coalescing() {
    check_rows(&[
        ("coalesce((_2,(_1,_6)):(_1,(_6,_2)))",           "12:1"),
        ("coalesce((2,(1,6)):(1,(6,2)), (1,1))",          "(2,6):(1,2)"),
    ]);
}

#[test]
#[rustfmt::skip]
fn compositions() {
    check_rows(&[
        ("composition((6,2):(8,2), (4,3):(3,1))",         "((2,2),3):((24,2),8)"),
        ("(6,2):(8,2) o (4,3):(3,1)",                     "((2,2),3):((24,2),8)"),
        ("composition(20:2, (5,4):(4,1))",                "(5,4):(8,2)"),
        ("composition((10,2):(16,4), (5,4):(1,5))",       "(5,(2,2)):(16,(80,4))"),
        ("composition((3,6,2,8):(1000,100,10,1), 16:9)",  "(2,2,4):(300,10,1)"),
        ("composition((12,(4,8)):(59,(13,1)), <3:4,8:2>)", "(3,(2,4)):(236,(26,1))"),
        ("composition((12,(4,8)):(59,(13,1)), (3,8))",    "(3,(4,2)):(59,(13,1))"),
        ("composition((4,3):(3,1), 24:1)",                "(4,6):(3,1)"),
        ("composition((4,3):(3,1), 8:1)",                 "(4,2):(3,1)"),
        ("composition((4,3,1):(3,1,0), 24:1)",            "(4,3,2):(3,1,0)"),
        ("composition((4,6,8):(1,4,7), 6:1)",             "6:1"),
        ("composition((4,6,8,10):(2,3,5,7), 6:12)",       "(2,3):(9,5)"),
        ("composition((8,8):(8,1), 2:3)",                 "2:24"),
        ("composition((8,8):(8,1), 3:3)",                 "3:24"),
        ("composition((1,(2,4)):(0,(-1,512)), 2:-1)",     "2:1"),
        ("composition((1,(2,4)):(0,(-1,512)), 4:-1)",     "(2,2):(1,-512)"),
        ("composition(S<3,4,3>, (5,4):(4,1))",            "S<3,4,3> o 0 o (5,4):(4,1)"),
        ("composition(Sw<3,4,3>, 8, (5,4):(4,1))",        "S<3,4,3> o 8 o (5,4):(4,1)"),
        ("composition(S<3,4,3> o 0 o (8,8):(8,1), (2,4))", "S<3,4,3> o 0 o (2,4):(8,1)"),
    ]);
}

#[test]
#[rustfmt::skip]
fn complements_and_inverses() {
    check_rows(&[
        ("complement(4:1, 24)",                           "6:4"),
        ("complement(6:4, 24)",                           "4:1"),
        ("complement((4,6):(1,4), 24)",                   "1:0"),
        ("complement(4:2, 24)",                           "(2,3):(1,8)"),
        ("complement((2,4):(1,6), 24)",                   "3:2"),
        ("complement((2,2):(1,6), 24)",                   "(3,2):(2,12)"),
        ("right_inverse((4,8):(8,1))",                    "(8,4):(4,1)"),
        ("left_inverse((4,8):(8,1))",                     "(8,4):(4,1)"),
        ("right_inverse((2,4):(1,4))",                    "2:1"),
        ("left_inverse((2,2):(1,4))",                     "(4,2):(1,2)"),
    ]);
}

#[test]
#[rustfmt::skip]
fn divisions() {
    let a = "(9,(4,8)):(59,(13,1))";
    let by = "<3:3,(2,4):(1,8)>";
    check_rows(&[
        ("logical_divide((4,2,3):(2,1,8), 4:2)",          "((2,2),(2,3)):((4,1),(2,8))"),
        (&format!("composition({a},{by})"),               "(3,(2,4)):(177,(13,2))"),
        (&format!("logical_divide({a},{by})"),            "((3,3),((2,4),(2,2))):((177,59),((13,2),(26,1)))"),
        (&format!("zipped_divide({a},{by})"),             "((3,(2,4)),(3,(2,2))):((177,(13,2)),(59,(26,1)))"),
        (&format!("tiled_divide({a},{by})"),              "((3,(2,4)),3,(2,2)):((177,(13,2)),59,(26,1))"),
        (&format!("flat_divide({a},{by})"),               "(3,(2,4),3,(2,2)):(177,(13,2),59,(26,1))"),
        ("logical_divide(48:1, 32)",                      "(32,2):(1,32)"),
        ("logical_divide((32,4,4):(1,32,128), 64)",       "(64,8):(1,64)"),
        ("logical_divide((8,8):(1,8), <_,4:1>)",          "(8,(4,2)):(1,(8,32))"),
        ("zipped_divide(S<2,4,3> o 0 o (8,64):(64,1), (8,16))",
                                                          "S<2,4,3> o 0 o ((8,16),(1,4)):((64,1),(0,16))"),
    ]);
}

#[test]
#[rustfmt::skip]
fn products() {
    let (a, b) = ("(2,5):(5,1)", "(3,4):(1,3)");
    check_rows(&[
        ("logical_product((2,2):(4,1), 6:1)",             "((2,2),(2,3)):((4,1),(2,8))"),
        ("logical_product((2,2):(4,1), (4,2):(2,1))",     "((2,2),(4,2)):((4,1),(8,2))"),
        (&format!("blocked_product({a},{b})"),            "(6,(5,4)):(5,(1,30))"),
        (&format!("raked_product({a},{b})"),              "((3,2),(4,5)):((10,5),(30,1))"),
        (&format!("logical_product({a},<3:5,4:6>)"),      "((2,3),(5,4)):((5,10),(1,30))"),
        (&format!("zipped_product({a},<3:5,4:6>)"),       "((2,5),(3,4)):((5,1),(10,30))"),
        (&format!("tiled_product({a},<3:5,4:6>)"),        "((2,5),3,4):((5,1),10,30)"),
        (&format!("flat_product({a},<3:5,4:6>)"),         "(2,5,3,4):(5,1,10,30)"),
        ("tile_to_shape((8,8):(8,1), (16,32))",           "(16,(8,4)):(8,(1,128))"),
        ("tile_to_shape((8,8):(8,1), (16,32), (2,1))",    "((8,2),(8,4)):((8,256),(1,64))"),
        ("tile_to_shape(S<3,4,3> o 0 o (8,64):(64,1), (128,64))",
                                                          "S<3,4,3> o 0 o (128,64):(64,1)"),
    ]);
}
