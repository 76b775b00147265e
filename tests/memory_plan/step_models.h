// SPDX-License-Identifier: BSD-3-Clause

// Steps of small models, with the numbers that eager code would have on a GPU.
#pragma once

#include <remat/memory_plan/step_profile.h>

namespace remat::test {

StepProfile mlp_step(int layers);
StepProfile transformer_step(int layers);
StepProfile unet_step(int levels);
StepProfile resnet_step(int blocks);           ///< Batch norm, ReLU in place
StepProfile encoder_decoder_step(int layers);  ///< What the encoder makes is read to the end.
StepProfile tied_weight_step(int layers);      ///< A cast weight, used first and last

}  // namespace remat::test
