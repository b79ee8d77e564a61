#include <ATen/TensorOperators.h>
#include <ATen/ops/detach.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
struct KeptSquare : torch::autograd::Function<KeptSquare> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& z) {
    context->saved_data["slope"] = 2 * z.detach();
    return z * z;
  }
  static variable_list backward(AutogradContext* context, variable_list cotangents) {
    return {cotangents[0] * context->saved_data["slope"].toTensor()};
  }
};
struct DetachedSquare : torch::autograd::Function<DetachedSquare> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& z) {
    context->save_for_backward({z});
    return z * z;
  }
  static variable_list backward(AutogradContext* context, variable_list cotangents) {
    return {(cotangents[0] * 2 * context->get_saved_variables()[0]).detach()};
  }
};
struct RightSquare : torch::autograd::Function<RightSquare> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& z) {
    context->save_for_backward({z});
    return z * z;
  }
  static variable_list backward(AutogradContext* context, variable_list cotangents) {
    return {cotangents[0] * 2 * context->get_saved_variables()[0]};
  }
};
TORCH_LIBRARY(metapt_tests, library) {
  library.def("kept_square", [](const at::Tensor& z) { return KeptSquare::apply(z); });
  library.def("detached_square", [](const at::Tensor& z) { return DetachedSquare::apply(z); });
  library.def("right_square", [](const at::Tensor& z) { return RightSquare::apply(z); });
}
