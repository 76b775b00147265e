// SPDX-License-Identifier: BSD-3-Clause

// The ops of random programs. In their texts, a, b, w, buffer, r and s stand for variables.
#include "fuzz/ops.h"

#include <array>

#include "fuzz/helpers.h"

namespace remat::fuzz {
namespace {

using at::Tensor;

// Both compiles the code and keeps its text for printed programs.
#define REMAT_FUZZ_OP(op, effect, results, saves, python, ...)                    \
  OpInfo {                                                                        \
    Op::op, Effect::effect, results, saves, #__VA_ARGS__, python,                 \
        []([[maybe_unused]] const Operands& operands, [[maybe_unused]] Tensor& r, \
           [[maybe_unused]] Tensor& s) {                                          \
          [[maybe_unused]] const auto& [a, b, w, buffer, bank, part] = operands;  \
          __VA_ARGS__;                                                            \
        }                                                                         \
  }

// clang-format off
const std::array kOps = {
    REMAT_FUZZ_OP(kSin, kMakes, 1, "a", "r = a.sin()", r = a.sin()),
    REMAT_FUZZ_OP(kTanh, kMakes, 1, "r", "r = a.tanh()", r = a.tanh()),
    REMAT_FUZZ_OP(kRelu, kMakes, 1, "r", "r = a.relu()", r = a.relu()),
    REMAT_FUZZ_OP(kSoftmax, kMakes, 1, "r", "r = a.softmax(1)", r = a.softmax(1)),
    REMAT_FUZZ_OP(kLayerNorm, kMakes, 1, "a", "r = F.layer_norm(a, (4,))", r = at::layer_norm(a, {4})),
    REMAT_FUZZ_OP(kMul, kMakes, 1, "a", "r = a * b.tanh()", r = a * b.tanh()),
    REMAT_FUZZ_OP(kAdd, kMakes, 1, "", "r = a + b", r = a + b),
    REMAT_FUZZ_OP(kLerp, kMakes, 1, "", "r = torch.lerp(a, b, 0.3)", r = at::lerp(a, b, 0.3)),
    REMAT_FUZZ_OP(kMatmul, kMakes, 1, "b", "r = (a.tanh() @ b).float()",
                  r = at::matmul(a.tanh(), b).to(at::kFloat)),
    REMAT_FUZZ_OP(kWeight, kMakes, 1, "a", "r = (a @ w).float()", r = at::matmul(a, w).to(at::kFloat)),
    REMAT_FUZZ_OP(kLinear, kMakes, 1, "a", "r = F.linear(a, w, w[0]).float()",
                  r = at::linear(a, w, w.select(0, 0)).to(at::kFloat)),
    REMAT_FUZZ_OP(kAttention, kMakes, 1, "ab",
                  "r = F.scaled_dot_product_attention(a[None], b[None], a[None], dropout_p=0.2)[0].float()",
                  r = at::scaled_dot_product_attention(a.unsqueeze(0), b.unsqueeze(0), a.unsqueeze(0), {}, 0.2)
                          .squeeze(0).to(at::kFloat)),
    REMAT_FUZZ_OP(kEinsum, kMakes, 1, "", "r = torch.einsum(\"ij,kj->ik\", a.tanh(), b.tanh()).float()",
                  r = at::einsum("ij,kj->ik", {a.tanh(), b.tanh()}).to(at::kFloat)),
    REMAT_FUZZ_OP(kDropout, kMakes, 1, "", "r = F.dropout(a, 0.4)", r = at::dropout(a, 0.4, true)),
    REMAT_FUZZ_OP(kRandom, kMakes, 1, "", "r = a * torch.rand_like(a)", r = a * at::rand_like(a)),
    REMAT_FUZZ_OP(kRrelu, kMakes, 1, "", "r = torch.rrelu(a, 0.1, 0.3, False)", r = at::rrelu(a, 0.1, 0.3, false)),
    REMAT_FUZZ_OP(kNormal, kMakes, 1, "", "r = a + torch.empty(4, 4, device=a.device).normal_()",
                  r = a + at::empty({4, 4}, a.device()).normal_()),
    REMAT_FUZZ_OP(kPermutation, kMakes, 1, "", "r = a.index_select(0, torch.randperm(4, device=a.device))",
                  r = a.index_select(0, at::randperm(4, a.options().dtype(at::kLong).requires_grad(false)))),
    REMAT_FUZZ_OP(kCat, kMakes, 1, "", "r = torch.cat((a[:2], b[2:]))",
                  r = at::cat({a.narrow(0, 0, 2), b.narrow(0, 2, 2)}, 0)),
    REMAT_FUZZ_OP(kUnbind, kMakes, 1, "", "r = torch.stack(a.unbind(1))", r = at::stack(a.unbind(1))),
    REMAT_FUZZ_OP(kIndex, kMakes, 1, "", "r = a.index_select(0, a.detach().sum(1).argsort())",
                  r = a.index_select(0, a.detach().sum(1).argsort())),
    REMAT_FUZZ_OP(kClone, kMakes, 1, "", "r = a.clone()", r = a.clone()),
    REMAT_FUZZ_OP(kWhere, kMakes, 1, "", "r = torch.where(a > 0.1, a, b)", r = at::where(a > 0.1, a, b)),
    REMAT_FUZZ_OP(kBranch, kMakes, 1, "a", "r = a.sin() if a.sum().item() > 0 else a.cos()",
                  r = a.sum().item<float>() > 0 ? a.sin() : a.cos()),
    REMAT_FUZZ_OP(kDouble, kMakes, 1, "", "r = a.double().cos().float()",
                  r = a.to(at::kDouble).cos().to(at::kFloat)),
    REMAT_FUZZ_OP(kBfloat16, kMakes, 1, "", "r = a.bfloat16().sin().float()",
                  r = a.to(at::kBFloat16).sin().to(at::kFloat)),
    REMAT_FUZZ_OP(kOut, kMakes, 1, "", "r = add_out(a, b)", r = add_out(a, b)),
    REMAT_FUZZ_OP(kNoGrad, kMakes, 1, "a", "r = no_grad_mean(a) * a", r = no_grad_mean(a) * a),
    REMAT_FUZZ_OP(kReadBuffer, kReadsBuffer, 1, "a", "r = a * (buffer + 0.5)", r = a * (buffer + 0.5)),
    REMAT_FUZZ_OP(kReadBank, kReadsBank, 1, "a", "r = a * (bank[part] + 0.5)", r = a * (bank.select(0, part) + 0.5)),
    REMAT_FUZZ_OP(kReadWholeBank, kReadsBank, 1, "", "r = a + bank.sum(0)", r = a + bank.sum(0)),
    REMAT_FUZZ_OP(kReadLibrary, kMakes, 1, "", "r = a * library_mix(a, b)", r = a * library_mix(a, b)),
    REMAT_FUZZ_OP(kLibraryFresh, kMakes, 1, "", "r = a.detach().clone()\nlibrary_scale(r, 0.7)\nr = r * b",
                  r = a.detach().clone(); library_scale(r, 0.7); r = r * b),
    REMAT_FUZZ_OP(kLibraryUnseenFresh, kMakes, 1, "", "r = a.detach().clone()\nlibrary_scale_unseen(r, 0.7)\nr = r * b",
                  r = a.detach().clone(); library_scale_unseen(r, 0.7); r = r * b),
    REMAT_FUZZ_OP(kRreluTraining, kMakes, 1, "a", "r = torch.rrelu(a, 0.1, 0.3, True)", r = at::rrelu(a, 0.1, 0.3, true)),
    REMAT_FUZZ_OP(kLogSigmoid, kMakes, 1, "a", "r = F.logsigmoid(a)", r = at::log_sigmoid(a)),
    REMAT_FUZZ_OP(kComplexScale, kMakes, 1, "", "r = (torch.complex(a, b) * complex(0.5, 0.25)).real",
                  r = at::real(at::complex(a, b).mul(c10::complex<double>(0.5, 0.25)))),
    REMAT_FUZZ_OP(kComplexLerp, kMakes, 1, "", "r = torch.lerp(torch.complex(a, b), torch.complex(b, a), complex(0.3, -0.2)).imag",
                  r = at::imag(at::lerp(at::complex(a, b), at::complex(b, a), c10::complex<double>(0.3, -0.2)))),
    REMAT_FUZZ_OP(kComplexAdd, kMakes, 1, "", "r = torch.add(torch.complex(a, b), b, alpha=complex(0, 0.5)).imag * 1.0",
                  r = at::imag(at::add(at::complex(a, b), b, c10::complex<double>(0, 0.5))) * 1.0),
    REMAT_FUZZ_OP(kComplexPad, kMakes, 1, "", "r = torch.constant_pad_nd(torch.complex(a, b), (1, 0, 0, 1), complex(0.5, -1))[1:, :4].abs()",
                  r = at::constant_pad_nd(at::complex(a, b), {1, 0, 0, 1}, c10::complex<double>(0.5, -1))
                          .narrow(0, 1, 4).narrow(1, 0, 4).abs()),
    REMAT_FUZZ_OP(kComplexFill, kMakes, 1, "", "r = torch.complex(a, b).index_fill(0, torch.ones(1, dtype=torch.long, device=a.device), complex(0, 0.5)).real.clone()",
                  r = at::real(at::complex(a, b).index_fill(0, at::ones({1}, a.options().dtype(at::kLong).requires_grad(false)), c10::complex<double>(0, 0.5))).clone()),
    REMAT_FUZZ_OP(kComplexWhere, kMakes, 1, "", "r = torch.where(a > 0.1, torch.complex(a, b), complex(0, 0.5)).real",
                  r = at::real(at::where(a > 0.1, at::complex(a, b), c10::complex<double>(0, 0.5)))),
    REMAT_FUZZ_OP(kComplexMatmul, kMakes, 1, "", "z = torch.complex(a.tanh(), b.tanh())\nr = (z @ z.mH).real",
                  const Tensor z = at::complex(a.tanh(), b.tanh()); r = at::real(at::matmul(z, z.mH()))),
    REMAT_FUZZ_OP(kComplexConvolution, kMakes, 1, "",
                  "r = F.conv2d(torch.complex(a, b)[None, None], torch.complex(w, w)[None, None, :3, :3], padding=1)[0, 0].real",
                  r = at::real(at::conv2d(at::complex(a, b).unsqueeze(0).unsqueeze(0),
                                          at::complex(w, w).narrow(0, 0, 3).narrow(1, 0, 3).unsqueeze(0).unsqueeze(0),
                                          {}, 1, 1).squeeze(0).squeeze(0))),
    REMAT_FUZZ_OP(kComplexFresh, kMakes, 1, "", "z = torch.complex(a, b)\nz.mul_(complex(0, 1)).add_(a, alpha=complex(0, 0.5))\nr = z.real",
                  const Tensor z = at::complex(a, b); z.mul_(c10::complex<double>(0, 1)).add_(a, c10::complex<double>(0, 0.5)); r = at::real(z)),
    REMAT_FUZZ_OP(kChunk, kMakes, 2, "", "r, s = (half.repeat(2, 1) for half in a.chunk(2))",
                  const auto parts = a.chunk(2); r = parts[0].repeat({2, 1}); s = parts[1].repeat({2, 1})),
    REMAT_FUZZ_OP(kTopk, kMakes, 2, "", "r, index = a.topk(4, 1)\ns = b.gather(1, index)",
                  const auto top = a.topk(4, 1); r = std::get<0>(top); s = b.gather(1, std::get<1>(top))),
    REMAT_FUZZ_OP(kSort, kMakes, 2, "", "r, index = a.sort(0)\ns = b.gather(0, index)",
                  const auto sorted = a.sort(0); r = std::get<0>(sorted); s = b.gather(0, std::get<1>(sorted))),
    REMAT_FUZZ_OP(kMax, kMakes, 2, "", "top, index = a.max(1, keepdim=True)\nr = a - top\ns = b.gather(1, index.expand(4, 4))",
                  const auto top = a.max(1, true); r = a - std::get<0>(top);
                  s = b.gather(1, std::get<1>(top).expand({4, 4}))),
    REMAT_FUZZ_OP(kVarMean, kMakes, 2, "a", "spread, middle = torch.var_mean(a, 1, keepdim=True)\nr = a * spread\ns = b - middle",
                  const auto both = at::var_mean(a, at::IntArrayRef({1}), true, true);
                  r = a * std::get<0>(both); s = b - std::get<1>(both)),
    REMAT_FUZZ_OP(kNativeLayerNorm, kMakes, 2, "ab", "r, _, factor = torch.native_layer_norm(a, [4], w[1], None, 1e-5)\ns = b * factor",
                  const auto normed = at::native_layer_norm(a, {4}, w.select(0, 1), {}, 1e-5);
                  r = std::get<0>(normed); s = b * std::get<2>(normed)),
    REMAT_FUZZ_OP(kLstmCell, kMakes, 2, "ab",
                  "r, s = (state.float() for state in torch.lstm_cell(a, (b, a), w.repeat(4, 1), w.repeat(4, 1)))",
                  const auto cell = at::lstm_cell(a, {b, a}, w.repeat({4, 1}), w.repeat({4, 1}));
                  r = std::get<0>(cell).to(at::kFloat); s = std::get<1>(cell).to(at::kFloat)),
    REMAT_FUZZ_OP(kForeach, kMakes, 2, "", "r, s = torch._foreach_mul([a, b], 0.7)",
                  const auto parts = at::_foreach_mul({a, b}, 0.7); r = parts[0]; s = parts[1]),
    REMAT_FUZZ_OP(kSquare, kMakes, 1, "", "r = Square.apply(a.tanh())", r = Square::apply(a.tanh())),
    REMAT_FUZZ_OP(kSavesResult, kMakes, 1, "r", "r = SavesResult.apply(a)", r = SavesResult::apply(a)),
    REMAT_FUZZ_OP(kTwoResults, kMakes, 2, "", "r, s = TwoResults.apply(a, b, 0.6)",
                  const auto parts = TwoResults::apply(a, b, 0.6); r = parts[0]; s = parts[1]),
    REMAT_FUZZ_OP(kInPlaceFunction, kMakes, 1, "", "r = InPlace.apply(a.clone())", r = InPlace::apply(a.clone())),
    REMAT_FUZZ_OP(kWritesSaved, kMakes, 1, "", "r = WritesSaved.apply(a)", r = WritesSaved::apply(a)),
    REMAT_FUZZ_OP(kWritesShared, kMakes, 1, "", "r = writes_shared(a)", r = writes_shared(a)),
    REMAT_FUZZ_OP(kHook, kMakes, 1, "", "r = a * 1.5\nset_hook(r, 0.5)", r = a * 1.5; set_hook(r, 0.5)),
    REMAT_FUZZ_OP(kHookLater, kHooksArgument, 1, "a", "r = a.sin()\nset_hook(a, 0.9)", r = a.sin(); set_hook(a, 0.9)),
    REMAT_FUZZ_OP(kInnerGrad, kGoesBack, 1, "a", "r = inner_grad(a)", r = inner_grad(a)),
    REMAT_FUZZ_OP(kInnerBackward, kGoesBack, 1, "", "r = inner_backward(a, w)", r = inner_backward(a, w)),
    REMAT_FUZZ_OP(kTranspose, kIsView, 1, "", "r = a.t()", r = a.t()),
    REMAT_FUZZ_OP(kReshape, kIsView, 1, "", "r = a.reshape(2, 8).reshape(4, 4)", r = a.reshape({2, 8}).reshape({4, 4})),
    REMAT_FUZZ_OP(kDetach, kIsView, 1, "", "r = a.detach()", r = a.detach()),
    REMAT_FUZZ_OP(kWindow, kMakes, 1, "", "r = torch.cat((a, b))[2:6]", r = at::cat({a, b}, 0).narrow(0, 2, 4)),
    REMAT_FUZZ_OP(kSplit, kMakesViews, 2, "", "r, s = torch.cat((a, b)).split(4)",
                  const auto parts = at::cat({a, b}, 0).split(4); r = parts[0]; s = parts[1]),
    REMAT_FUZZ_OP(kScaleInPlace, kWrites, 0, "", "a.mul_(0.9)", a.mul_(0.9)),
    REMAT_FUZZ_OP(kAddInPlace, kWrites, 0, "", "a.add_(b)", a.add_(b)),
    REMAT_FUZZ_OP(kCopyInPlace, kWrites, 0, "", "a.copy_(b)", a.copy_(b)),
    REMAT_FUZZ_OP(kReluInPlace, kWrites, 0, "a", "a.relu_()", a.relu_()),
    REMAT_FUZZ_OP(kDropoutInPlace, kWrites, 0, "", "F.dropout(a, 0.3, inplace=True)",
                  Tensor written = a; at::dropout_(written, 0.3, true)),
    REMAT_FUZZ_OP(kZeroInPlace, kWrites, 0, "", "a.zero_()", a.zero_()),
    REMAT_FUZZ_OP(kSelectInPlace, kWrites, 0, "", "a.select(0, 1).mul_(1.1)", a.select(0, 1).mul_(1.1)),
    REMAT_FUZZ_OP(kTransposeInPlace, kWrites, 0, "", "a.t().add_(b.detach().clone())", a.t().add_(b.detach().clone())),
    REMAT_FUZZ_OP(kSliceInPlace, kWrites, 0, "", "a[1:3] = b[:2] * 1.0", a.narrow(0, 1, 2).copy_(b.narrow(0, 0, 2) * 1.0)),
    REMAT_FUZZ_OP(kForeachInPlace, kWrites, 0, "", "torch._foreach_mul_([a], 0.7)", at::_foreach_mul_({a}, 0.7)),
    REMAT_FUZZ_OP(kRreluInPlace, kWrites, 0, "a", "torch.rrelu_(a, 0.1, 0.3, True)", Tensor written = a; at::rrelu_(written, 0.1, 0.3, true)),
    REMAT_FUZZ_OP(kRenormInPlace, kWrites, 0, "a", "a.renorm_(2, 0, 0.9)", a.renorm_(2, 0, 0.9)),
    REMAT_FUZZ_OP(kComplexInPlace, kWrites, 0, "", "torch.view_as_complex(a.reshape(4, 2, 2)).mul_(complex(0.5, 0.5))",
                  at::view_as_complex(a.reshape({4, 2, 2})).mul_(c10::complex<double>(0.5, 0.5))),
    REMAT_FUZZ_OP(kLibraryMarked, kWrites, 0, "", "library_scale_marked(a, [b.detach().clone()], 0.9)",
                  library_scale_marked(a, {b.detach().clone()}, 0.9)),
    REMAT_FUZZ_OP(kLibraryInPlace, kWrites, 0, "", "library_scale(a, 0.9)", library_scale(a, 0.9)),
    REMAT_FUZZ_OP(kLibraryListInPlace, kWrites, 0, "", "library_scale_all([a], 0.9)", library_scale_all({a}, 0.9)),
    REMAT_FUZZ_OP(kLibraryFill, kWrites, 1, "", "r = b + library_fill(a, b.detach())", r = b + library_fill(a, b.detach())),
    REMAT_FUZZ_OP(kLibraryUnseen, kWrites, 0, "", "library_scale_unseen(a, 0.9)", library_scale_unseen(a, 0.9)),
    REMAT_FUZZ_OP(kWriteBuffer, kWritesBuffer, 0, "", "buffer.mul_(0.5).add_(a.detach().tanh())",
                  buffer.mul_(0.5).add_(a.detach().tanh())),
    REMAT_FUZZ_OP(kWriteColumn, kWritesBuffer, 0, "", "buffer[:, 2].mul_(0.5).add_(a.detach()[:, 1])",
                  buffer.select(1, 2).mul_(0.5).add_(a.detach().select(1, 1))),
    REMAT_FUZZ_OP(kEmbedding, kWritesBuffer, 1, "a", "r = a * F.embedding(torch.arange(4, device=a.device), buffer, max_norm=0.7)",
                  Tensor written = buffer; at::embedding_renorm_(written, at::arange(4, a.options().dtype(at::kLong).requires_grad(false)), 0.7, 2);
                  r = a * at::embedding(buffer, at::arange(4, a.options().dtype(at::kLong).requires_grad(false)))),
    REMAT_FUZZ_OP(kTrainNorm, kWritesBuffer, 1, "a", "r = F.batch_norm(a, buffer[0], buffer[1], w[0], w[1], True)",
                  r = at::batch_norm(a, w.select(0, 0), w.select(0, 1), buffer.select(0, 0), buffer.select(0, 1), true, 0.1, 1e-5, false)),
    REMAT_FUZZ_OP(kLibraryBuffer, kWritesBuffer, 0, "", "library_scale(buffer, 0.9)", library_scale(buffer, 0.9)),
    REMAT_FUZZ_OP(kLibraryListBuffer, kWritesBuffer, 0, "", "library_scale_all([buffer], 0.9)", library_scale_all({buffer}, 0.9)),
    REMAT_FUZZ_OP(kLibraryUnseenBuffer, kWritesBuffer, 0, "", "library_scale_unseen(buffer, 0.9)", library_scale_unseen(buffer, 0.9)),
    REMAT_FUZZ_OP(kWriteBank, kWritesBank, 0, "", "bank[part] = a.detach()", bank.select(0, part).copy_(a.detach())),
    REMAT_FUZZ_OP(kWriteBankRow, kWritesBank, 0, "", "bank[part, 1:3] = a.detach()[:2]",
                  bank.select(0, part).narrow(0, 1, 2).copy_(a.detach().narrow(0, 0, 2))),
    REMAT_FUZZ_OP(kWriteBankColumn, kWritesBank, 0, "", "bank[part:, :, 2].mul_(0.5).add_(a.detach()[0].tanh())",
                  bank.narrow(0, part, 6 - part).select(2, 2).mul_(0.5).add_(a.detach().select(0, 0).tanh())),
    REMAT_FUZZ_OP(kToHost, kMakes, 1, "", "r = a.cpu() * 1", r = a.cpu() * 1),
    REMAT_FUZZ_OP(kToDevice, kMakes, 1, "", "r = a.to(\"cuda:0\") * 1", r = a.to(at::Device("cuda:0")) * 1),
    REMAT_FUZZ_OP(kToSecond, kMakes, 1, "", "r = a.to(second_device()) * 1", r = a.to(second_device()) * 1),
    REMAT_FUZZ_OP(kPinned, kMakes, 1, "", "r = a * from_pinned(b, a.device)", r = a * from_pinned(b, a.device())),
    REMAT_FUZZ_OP(kFromPinned, kMakes, 1, "", "r = a + from_pinned(a, second_device()).to(a.device)",
                  r = a + from_pinned(a, second_device()).to(a.device())),
    REMAT_FUZZ_OP(kRandomHere, kMakes, 1, "", "r = a * torch.rand(4, 4, device=\"cuda\").to(a.device)",
                  r = a * at::rand({4, 4}, at::kCUDA).to(a.device())),
    REMAT_FUZZ_OP(kRecordStream, kMakes, 1, "a", "r = a.sin()\nused_here(r)", r = a.sin(); used_here(r)),
};
// clang-format on
static_assert(kOps.size() == static_cast<size_t>(Op::kAllOpCount));

#define REMAT_FUZZ_HELPER_OF(name, python) \
  Helper {                                 \
#name, name##_text, python             \
  }

constexpr std::array kHelpers = {
    REMAT_FUZZ_HELPER_OF(Square, R"(
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return grad * 2 * ctx.saved_tensors[0]
)"),
    REMAT_FUZZ_HELPER_OF(SavesResult, R"(
class SavesResult(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        result = x.sigmoid()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx, grad):
        (result,) = ctx.saved_tensors
        return grad * result * (1 - result)
)"),
    REMAT_FUZZ_HELPER_OF(TwoResults, R"(
class TwoResults(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y, factor):
        middle = x.tanh()
        ctx.factor = factor
        ctx.save_for_backward(middle)
        return middle * factor, y + middle

    @staticmethod
    def backward(ctx, first, second):
        (middle,) = ctx.saved_tensors
        return (first * ctx.factor + second) * (1 - middle * middle), second, None
)"),
    REMAT_FUZZ_HELPER_OF(WritesSaved, R"(
class WritesSaved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.kept = x.tanh()
        ctx.save_for_backward(ctx.kept)
        return x * ctx.kept

    @staticmethod
    def backward(ctx, grad):
        (saved,) = ctx.saved_tensors
        before = saved * 2
        saved.mul_(0.5)
        return grad * (before + ctx.kept)
)"),
    REMAT_FUZZ_HELPER_OF(WritesShared, R"(
class WritesShared(Square):
    @staticmethod
    def backward(ctx, grad):
        (saved,) = ctx.saved_tensors
        saved.detach().mul_(2)
        return grad * saved
)"),
    REMAT_FUZZ_HELPER_OF(writes_shared, R"(
def writes_shared(a):
    middle = a.sin()
    square = WritesShared.apply(middle.view(-1))
    return square.view(4, 4) * middle.cos()
)"),
    REMAT_FUZZ_HELPER_OF(InPlace, R"(
class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(0.5)

    @staticmethod
    def backward(ctx, grad):
        return grad * 0.5
)"),
    REMAT_FUZZ_HELPER_OF(add_out, R"(
def add_out(a, b):
    with torch.no_grad():
        return torch.add(a, b, out=torch.zeros(4, 4, device=a.device))
)"),
    REMAT_FUZZ_HELPER_OF(no_grad_mean, R"(
def no_grad_mean(a):
    with torch.no_grad():
        return a.mean()
)"),
    REMAT_FUZZ_HELPER_OF(inner_grad, R"(
def inner_grad(a):
    x = a if a.requires_grad else a.detach().requires_grad_()
    return torch.autograd.grad((x.sin() * x).sum(), x, create_graph=True)[0]
)"),
    REMAT_FUZZ_HELPER_OF(inner_backward, R"(
def inner_backward(a, weight):
    x = a.detach().requires_grad_()
    (x * weight).sin().sum().backward()
    return a + x.grad
)"),
    REMAT_FUZZ_HELPER_OF(set_hook, R"(
def set_hook(a, factor):
    if a.requires_grad:
        a.register_hook(lambda grad: None if grad is None else grad * factor)
)"),
    REMAT_FUZZ_HELPER_OF(library_op, R"py(
def library_op(name):
    return getattr(torch.ops.fuzz, name)


def scale(x, factor):
    x.detach().mul_(factor)


def scale_all(xs, factor):
    for x in xs:
        scale(x, factor)


def scale_unseen(x, factor):
    values = x.detach().numpy()
    values *= factor


def scale_marked(x, xs, factor):
    scale_all([x, *xs], factor)


def fill(x, y):
    x.detach().copy_(y.detach() * 0.5)
    return x.detach() + y.detach()


def mix(xs):
    return torch.stack([x.detach() for x in xs]).tanh().sum(0)


library = torch.library.Library("fuzz", "FRAGMENT")
for kernel, schema in (
    (scale, "(Tensor x, float factor) -> ()"),
    (scale_all, "(Tensor[] xs, float factor) -> ()"),
    (scale_unseen, "(Tensor x, float factor) -> ()"),
    (scale_marked, "(Tensor(a!) x, Tensor(b!)[] xs, float factor) -> ()"),
    (fill, "(Tensor x, Tensor y) -> Tensor"),
    (mix, "(Tensor[] xs) -> Tensor"),
):
    if not hasattr(torch.ops.fuzz, kernel.__name__):
        library.define(kernel.__name__ + schema)
        library.impl(kernel.__name__, kernel, "CompositeExplicitAutograd")
        sys.fuzz_library = library  # as long as the process
)py"),
    REMAT_FUZZ_HELPER_OF(library_scale, R"(
def library_scale(x, factor):
    library_op("scale")(x, factor)
)"),
    REMAT_FUZZ_HELPER_OF(library_scale_all, R"(
def library_scale_all(xs, factor):
    library_op("scale_all")(xs, factor)
)"),
    REMAT_FUZZ_HELPER_OF(library_scale_unseen, R"(
def library_scale_unseen(x, factor):
    library_op("scale_unseen")(x, factor)
)"),
    REMAT_FUZZ_HELPER_OF(library_scale_marked, R"(
def library_scale_marked(x, xs, factor):
    library_op("scale_marked")(x, xs, factor)
)"),
    REMAT_FUZZ_HELPER_OF(library_fill, R"(
def library_fill(x, y):
    return library_op("fill")(x, y)
)"),
    REMAT_FUZZ_HELPER_OF(library_mix, R"(
def library_mix(a, b):
    return library_op("mix")([a.detach(), b.detach()])
)"),
    REMAT_FUZZ_HELPER_OF(second_device, R"(
def second_device():
    return torch.device("cuda", torch.cuda.device_count() - 1)
)"),
    REMAT_FUZZ_HELPER_OF(wait_for, ""),
    REMAT_FUZZ_HELPER_OF(from_pinned, R"(
@torch.no_grad()
def from_pinned(a, device):
    if a.is_cpu:
        return a.detach().pin_memory().to(device, non_blocking=True)
    if device.type == "cpu":
        return a.detach().cpu()
    host = torch.empty(a.shape, dtype=a.dtype, pin_memory=True)
    host.copy_(a.detach(), non_blocking=True)
    if a.device != device:
        torch.cuda.current_stream(device).wait_stream(torch.cuda.current_stream(a.device))
    return host.to(device, non_blocking=True)
)"),
    REMAT_FUZZ_HELPER_OF(used_here, R"(
def used_here(a):
    if a.is_cuda:
        a.record_stream(torch.cuda.current_stream(a.device))
)"),
    REMAT_FUZZ_HELPER_OF(other_stream, R"(
@functools.cache
def other_stream(device):
    return torch.cuda.Stream(device)
)"),
    REMAT_FUZZ_HELPER_OF(SideStream, R"(
late = threading.local()


class SideStream:
    """While entered, another stream of a device is the current one."""

    def __init__(self, device, used, is_late=False):
        self.device, self.used, self.is_late = device, used, is_late

    def __enter__(self):
        self.before, self.side = torch.cuda.current_stream(self.device), other_stream(self.device)
        self.side.wait_stream(self.before)
        self.here = torch.cuda.current_device()
        for tensor in self.used:
            if tensor.device == self.device:
                tensor.record_stream(self.side)
        torch.cuda.set_stream(self.side)
        torch.cuda.set_device(self.here)

    def __exit__(self, *error):
        here = torch.cuda.current_device()
        torch.cuda.set_stream(self.before)
        torch.cuda.set_device(here)
        if self.is_late:
            late.sides = [*getattr(late, "sides", []), self.side]
        else:
            self.before.wait_stream(self.side)
)"),
    REMAT_FUZZ_HELPER_OF(on_this_stream, R"(
def on_this_stream(results):
    for side in getattr(late, "sides", []):
        torch.cuda.current_stream(side.device).wait_stream(side)
    late.sides = []
    for result in results:
        used_here(result)
    return results
)"),
    REMAT_FUZZ_HELPER_OF(bytes_of, ""),
    REMAT_FUZZ_HELPER_OF(resize_storage, ""),
    REMAT_FUZZ_HELPER_OF(free_storages, R"(
def free_storages(tensors):
    for tensor in tensors:
        tensor.untyped_storage().resize_(0)
)"),
    REMAT_FUZZ_HELPER_OF(free_for_a_while, R"(
def free_for_a_while(tensors):
    copies = [tensor.untyped_storage().clone() for tensor in tensors]
    for tensor in tensors:
        tensor.untyped_storage().resize_(0)
    for tensor, copy in zip(tensors, copies):
        tensor.untyped_storage().resize_(copy.nbytes())
        tensor.untyped_storage().copy_(copy)
)"),
    REMAT_FUZZ_HELPER_OF(Autocast, ""),
    REMAT_FUZZ_HELPER_OF(copying_hooks, R"(
def copying_hooks():
    return remat.saved_tensors_hooks(lambda t: t.clone(), lambda t: t.clone())
)"),
    REMAT_FUZZ_HELPER_OF(on_thread, R"(
def on_thread(fn):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(fn).result()
)"),
    REMAT_FUZZ_HELPER_OF(on_two_threads, ""),
};

}  // namespace

const OpInfo& info(Op op) {
  return kOps[static_cast<size_t>(op)];
}

std::span<const Helper> helpers() {
  return kHelpers;
}

}  // namespace remat::fuzz
