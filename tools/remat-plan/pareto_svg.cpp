// SPDX-License-Identifier: BSD-3-Clause

// Draws the curve of budgets and overheads.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "output.h"
#include "text.h"

namespace remat_plan {

namespace {

constexpr double width = 760;
constexpr double height = 460;
constexpr double left = 70;
constexpr double right = 20;
constexpr double top = 40;
constexpr double bottom = 60;
constexpr int bound_points = 100;

std::string number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f", value);
  return text.data();
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '&') {
      out += "&amp;";
    } else {
      out += c;
    }
  }
  return out;
}

class Picture {
 public:
  Picture(double whole_bytes, double most_overhead)
      : whole_(whole_bytes), most_(std::max(most_overhead, 0.01)) {
    svg_ = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + number(width) + "\" height=\"" +
           number(height) +
           "\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" "
           "fill=\"white\"/>\n";
  }

  void text(double x, double y, const std::string& words, const char* anchor = "middle") {
    svg_ += "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" text-anchor=\"" + anchor +
            "\">" + escaped(words) + "</text>\n";
  }

  void axes() {
    for (int i = 0; i <= 10; ++i) {
      const double px = x(whole_ * i / 10);
      line(px, top, px, height - bottom, "#ddd");
      text(px, height - bottom + 18, std::to_string(10 * i) + " %");
      const double py = y(most_ * i / 10);
      line(left, py, width - right, py, "#ddd");
      text(left - 8, py + 4, number(10 * most_ * i) + " %", "end");
    }
    text((left + width - right) / 2, height - 20,
         "budget, share of the " + in_words(static_cast<int64_t>(whole_)) +
             " that nothing checkpointed takes");
    text(left, 28, "time above that of nothing run twice", "start");
  }

  /// Draws a falling curve, as a step function if `steps`.
  void curve(const std::vector<std::pair<double, double>>& points, const char* style, bool steps) {
    std::string path;
    double last_y = 0;
    for (const auto& [bytes, overhead] : points) {
      const double px = x(bytes);
      const double py = y(std::min(overhead, most_));
      if (!path.empty() && steps) path += " " + number(px) + "," + number(last_y);
      path += " " + number(px) + "," + number(py);
      last_y = py;
    }
    svg_ += "<polyline fill=\"none\" " + std::string(style) + " points=\"" + path + "\"/>\n";
  }

  void dot(double bytes, double overhead) {
    svg_ += "<circle cx=\"" + number(x(bytes)) + "\" cy=\"" + number(y(std::min(overhead, most_))) +
            "\" r=\"5\" fill=\"#c33\"/>\n";
  }

  void legend(int row, const std::string& words, const char* style) {
    const double py = top + 16 + 18 * row;
    svg_ += "<line x1=\"" + number(width - 250) + "\" y1=\"" + number(py) + "\" x2=\"" +
            number(width - 220) + "\" y2=\"" + number(py) + "\" " + style + "/>\n";
    text(width - 212, py + 4, words, "start");
  }

  std::string finish() { return svg_ + "</svg>\n"; }

 private:
  double x(double bytes) const { return left + (width - left - right) * bytes / whole_; }
  double y(double overhead) const {
    return height - bottom - (height - top - bottom) * overhead / most_;
  }
  void line(double x1, double y1, double x2, double y2, const char* colour) {
    svg_ += "<line x1=\"" + number(x1) + "\" y1=\"" + number(y1) + "\" x2=\"" + number(x2) +
            "\" y2=\"" + number(y2) + "\" stroke=\"" + colour + "\"/>\n";
  }

  double whole_;
  double most_;
  std::string svg_;
};

std::vector<std::pair<double, double>> curve_of(const remat::Frontier& frontier) {
  std::vector<std::pair<double, double>> points;
  for (const remat::FrontierPoint& point : frontier.points()) {
    points.emplace_back(static_cast<double>(point.budget_bytes), point.overhead);
  }
  return points;
}

}  // namespace

std::string pareto_svg(const remat::Planner& planner) {
  const remat::Planner rotor(planner.profile(), {.plan_class = remat::PlanClass::kRotor});
  const remat::Plan layers = planner.layer_checkpoint();
  const double whole =
      static_cast<double>(std::max<int64_t>(1, planner.frontier().no_checkpoint_peak_bytes()));
  const double least = static_cast<double>(planner.frontier().least_budget_bytes());
  Picture picture(whole, std::max(planner.frontier().points().front().overhead, layers.overhead));
  picture.axes();
  picture.text((left + width - right) / 2, 16, planner.profile().name);
  std::vector<std::pair<double, double>> bound;
  for (int i = 0; i <= bound_points; ++i) {
    const double budget = least + (whole - least) * i / bound_points;
    bound.emplace_back(budget, planner.lower_bound(static_cast<int64_t>(budget)));
  }
  constexpr const char* plan_style = "stroke=\"#25c\" stroke-width=\"2\"";
  constexpr const char* bound_style = "stroke=\"#888\" stroke-dasharray=\"4 3\"";
  constexpr const char* rotor_style = "stroke=\"#e90\" stroke-width=\"1.5\"";
  picture.curve(curve_of(rotor.frontier()), rotor_style, true);
  picture.curve(bound, bound_style, false);
  picture.curve(curve_of(planner.frontier()), plan_style, true);
  picture.dot(static_cast<double>(layers.simulated_peak_bytes), layers.overhead);
  picture.legend(0, "plans of remat", plan_style);
  picture.legend(1, "no schedule is below", bound_style);
  picture.legend(2, "Rotor's plans", rotor_style);
  picture.legend(3, "each layer checkpointed (dot)", "stroke=\"#c33\" stroke-width=\"5\"");
  return picture.finish();
}

}  // namespace remat_plan
