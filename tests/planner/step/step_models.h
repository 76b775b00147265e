// SPDX-License-Identifier: BSD-3-Clause

// Steps of small models, with the numbers of eager code on a GPU.
#pragma once

#include <remat/planner/step_profile.h>

namespace remat::test {

/// Value 0 is from outside. Record j reads value j and makes value j + 1, of 10 bytes, in 2^j us.
/// The program holds that value while record j + 1 runs, which saves it. Nodes run in reverse.
/// Nothing else takes memory.
StepProfile line_step(int32_t records);

StepProfile mlp_step(int layers);
StepProfile transformer_step(int layers);
StepProfile unet_step(int levels);
StepProfile resnet_step(int blocks);           ///< Batch norm, ReLU in place
StepProfile encoder_decoder_step(int layers);  ///< Every decoder layer reads the encoder's result.
StepProfile tied_weight_step(int layers);      ///< A cast weight, read first and last

}  // namespace remat::test
