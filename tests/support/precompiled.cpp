// SPDX-License-Identifier: BSD-3-Clause

// Carries the precompiled header that all suites reuse.
