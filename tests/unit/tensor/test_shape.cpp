// SPDX-License-Identifier: Apache-2.0
// Shapes, and which views are refused and how.
#include "tensor/shape.hpp"

#include "base/error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace tpfsdp {
namespace {

using testing::HasSubstr;

struct Refusal {
  Status status = TPFSDP_OK;
  std::string text;
};

Refusal refusal_of(const std::function<void()> &call) {
  try {
    call();
    return {};
  } catch (const Failure &failure) {
    return {failure.status(), failure.what()};
  }
}

TEST(Shape, CountsElements) {
  EXPECT_EQ(element_count({}), 1);
  EXPECT_EQ(element_count({3, 4}), 12);
  EXPECT_EQ(element_count({3, 0, 4}), 0);
  EXPECT_EQ(element_count({2147483656}), 2147483656);  // case B017
  EXPECT_EQ(element_count({INT64_MAX, 0, INT64_MAX}), 0) << "an extent of 0 ends it, whatever the others say";
  EXPECT_EQ(element_count({INT64_MAX, 1}), INT64_MAX);
}

TEST(Shape, OverflowAndNegativeExtentsAreRefused) {
  const Refusal overflow = refusal_of([] { element_count({int64_t{1} << 32, int64_t{1} << 31}); });
  EXPECT_EQ(overflow.status, TPFSDP_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(overflow.text, HasSubstr("(4294967296, 2147483648)"));
  EXPECT_EQ(refusal_of([] { element_count({3, -1}); }).status, TPFSDP_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(refusal_of([] { element_count({0, -1}); }).status, TPFSDP_ERR_INVALID_ARGUMENT);
}

TEST(Shape, TextAndStrides) {
  EXPECT_EQ(shape_text({}), "()");
  EXPECT_EQ(shape_text({3}), "(3)");
  EXPECT_EQ(shape_text({3, 4}), "(3, 4)");
  EXPECT_EQ(dense_strides({2, 3, 4}), (Shape{12, 4, 1}));
  EXPECT_EQ(dense_strides({}), Shape{});
  EXPECT_EQ(dense_strides({0, 5}), (Shape{5, 1}));
}

class View : public testing::Test {
 protected:
  View() {
    view_.data = memory_;
    view_.size_bytes = 24;
    view_.shape = shape_;
    view_.ndim = 2;
    view_.dtype = TPFSDP_DTYPE_F32;
    view_.device_type = TPFSDP_DEVICE_CPU;
  }
  Refusal refusal() const {
    return refusal_of([this] { check_view(view_, "weight"); });
  }
  void expect_strides(int64_t a, int64_t b, const char *name) {
    strides_[0] = a;
    strides_[1] = b;
    view_.strides = strides_;
    const Refusal got = refusal();
    if (!name) {
      EXPECT_EQ(got.status, TPFSDP_OK) << got.text;
    } else {
      EXPECT_EQ(got.status, TPFSDP_ERR_UNSUPPORTED);
      EXPECT_THAT(got.text, HasSubstr("weight"));
      EXPECT_THAT(got.text, HasSubstr(name));
    }
  }

  float memory_[6] = {};
  int64_t shape_[2] = {2, 3};
  int64_t strides_[2] = {3, 1};
  tpfsdp_view view_{};
};

TEST_F(View, DenseOnesPass) {
  EXPECT_EQ(refusal().status, TPFSDP_OK);
  expect_strides(3, 1, nullptr);
}

TEST_F(View, OtherLayoutsAreRefusedByName) {
  expect_strides(1, 2, "column-major");
  expect_strides(0, 1, "broadcast");
  expect_strides(-3, 1, "reversed");
  expect_strides(6, 1, "strided");
  expect_strides(6, 1, "(6, 1)");
  expect_strides(6, 1, "(3, 1)");
}

TEST_F(View, StridesOfExtentsZeroAndOneSayNothing) {
  shape_[0] = 1;
  view_.size_bytes = 12;
  expect_strides(-77, 1, nullptr);
  shape_[0] = 6;
  shape_[1] = 1;
  view_.size_bytes = 24;
  expect_strides(1, 99, nullptr);
  shape_[0] = 0;
  view_.size_bytes = 0;
  view_.data = nullptr;
  expect_strides(-1, 0, nullptr);
}

TEST_F(View, BadNumbersAreRefusedWithBothValues) {
  view_.size_bytes = 20;
  EXPECT_EQ(refusal().status, TPFSDP_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(refusal().text, testing::AllOf(HasSubstr("20"), HasSubstr("24"), HasSubstr("(2, 3)"), HasSubstr("f32")));
}

TEST_F(View, NullDataOfATensorWithElementsIsRefused) {
  view_.data = nullptr;
  EXPECT_THAT(refusal().text, HasSubstr("NULL data"));
}

TEST_F(View, NegativeExtentsAndNdimAreRefused) {
  shape_[1] = -3;
  EXPECT_THAT(refusal().text, HasSubstr("(2, -3)"));
  view_.ndim = -1;
  EXPECT_THAT(refusal().text, HasSubstr("ndim -1"));
  view_.ndim = 65;
  EXPECT_THAT(refusal().text, HasSubstr("ndim 65"));
}

TEST_F(View, NullShapeIsAScalar) {
  view_.shape = nullptr;
  EXPECT_THAT(refusal().text, HasSubstr("shape is NULL"));
  view_.ndim = 0;
  view_.size_bytes = 4;
  EXPECT_EQ(refusal().status, TPFSDP_OK);
  EXPECT_EQ(shape_of(view_), Shape{});
}

TEST_F(View, UnknownDtypesAndDevicesAreRefused) {
  view_.dtype = 99;
  EXPECT_EQ(refusal().status, TPFSDP_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(refusal().text, HasSubstr("dtype 99"));
  view_.dtype = TPFSDP_DTYPE_F32;
  view_.device_type = 8;
  EXPECT_EQ(refusal().status, TPFSDP_ERR_UNSUPPORTED);
  view_.device_type = TPFSDP_DEVICE_DEFAULT;
  EXPECT_EQ(refusal().status, TPFSDP_ERR_INVALID_ARGUMENT);
}

TEST_F(View, MetaHasNoMemory) {
  view_.device_type = TPFSDP_DEVICE_META;
  EXPECT_THAT(refusal().text, HasSubstr("META"));
  view_.data = nullptr;
  EXPECT_EQ(refusal().status, TPFSDP_OK);
}

TEST_F(View, FlagsThatAreNeitherZeroNorOneAreRefused) {
  view_.read_only = 2;
  EXPECT_THAT(refusal().text, HasSubstr("read_only"));
  view_.read_only = 1;
  view_.reserved = 5;
  EXPECT_THAT(refusal().text, HasSubstr("reserved"));
}

}  // namespace
}  // namespace tpfsdp
