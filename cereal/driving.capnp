# Messages of the driving stack that the daemon neither writes nor reads, but that stand in logs:
# its state, plans, estimates and warnings.
#
# Layout rule: the wire position of a field follows from the ordinals and types of ALL fields with
# lower ordinals, so every ordinal is declared, in order, also those that nobody reads any more.
# Names may change; ordinals and types may not.
#
# Frames of reference: see log.capnp. `device` is x forward, y right, z down.

@0xbd2b5a4a1d3a35f1;

using Car = import "car.capnp";
using Log = import "log.capnp";

enum LongitudinalPersonality @0xd692e23d1a247d99 {
  aggressive @0;
  standard @1;
  relaxed @2;
}

enum Desire @0xae674a34ba421466 {
  none @0;
  turnLeft @1;
  turnRight @2;
  laneChangeLeft @3;
  laneChangeRight @4;
  keepLeft @5;
  keepRight @6;
}

# onroadEvents, a list of what is the matter: sent at 1 Hz and whenever it changes.
struct OnroadEvent @0xc4fa6047f024e718 {
  name @0 :EventName;
  enable @1 :Bool;                    # engage
  noEntry @2 :Bool;                   # engaging is refused
  warning @3 :Bool;                   # only while engaged
  userDisable @4 :Bool;               # the driver disengaged
  softDisable @5 :Bool;               # disengage after a few seconds
  immediateDisable @6 :Bool;
  preEnable @7 :Bool;
  permanent @8 :Bool;                 # shown whatever the state
  overrideLongitudinal @9 :Bool;
  overrideLateral @10 :Bool;

  enum EventName @0x91f1992a1f77fb03 {
    canError @0;
    steerUnavailable @1;
    wrongGear @2;
    doorOpen @3;
    seatbeltNotLatched @4;
    espDisabled @5;
    wrongCarMode @6;
    steerTempUnavailable @7;
    reverseGear @8;
    buttonCancel @9;
    buttonEnable @10;
    pedalPressed @11;
    preEnableStandstill @12;
    gasPressedOverride @13;
    steerOverride @14;
    cruiseDisabled @15;
    speedTooLow @16;
    outOfSpace @17;
    overheat @18;
    calibrationIncomplete @19;
    calibrationInvalid @20;
    calibrationRecalibrating @21;
    controlsMismatch @22;
    pcmEnable @23;
    pcmDisable @24;
    radarFault @25;
    brakeHold @26;
    parkBrake @27;
    manualRestart @28;
    joystickDebug @29;
    longitudinalManeuver @30;
    steerTempUnavailableSilent @31;
    resumeRequired @32;
    preDriverDistracted @33;          # driverDistracted1 in 2026
    promptDriverDistracted @34;       # driverDistracted2
    driverDistracted @35;             # driverDistracted3
    preDriverUnresponsive @36;        # driverUnresponsive1
    promptDriverUnresponsive @37;     # driverUnresponsive2
    driverUnresponsive @38;           # driverUnresponsive3
    belowSteerSpeed @39;
    lowBattery @40;                   # retired
    accFaulted @41;
    sensorDataInvalid @42;
    commIssue @43;
    commIssueAvgFreq @44;
    tooDistracted @45;
    posenetInvalid @46;
    soundsUnavailable @47;            # retired
    preLaneChangeLeft @48;
    preLaneChangeRight @49;
    laneChange @50;
    lowMemory @51;
    stockAeb @52;
    ldw @53;
    carUnrecognized @54;
    invalidLkasSetting @55;
    speedTooHigh @56;
    laneChangeBlocked @57;
    relayMalfunction @58;
    stockFcw @59;
    startup @60;
    startupNoCar @61;
    startupNoControl @62;
    startupNoSecOcKey @63;
    startupMaster @64;
    fcw @65;
    steerSaturated @66;
    belowEngageSpeed @67;
    noGps @68;
    wrongCruiseMode @69;
    modeldLagging @70;
    deviceFalling @71;                # retired 2026
    fanMalfunction @72;
    cameraMalfunction @73;
    cameraFrameRate @74;
    processNotRunning @75;
    dashcamMode @76;
    selfdriveInitializing @77;
    usbError @78;                     # retired 2026
    cruiseMismatch @79;
    canBusMissing @80;
    selfdrivedLagging @81;
    resumeBlocked @82;
    steerTimeLimit @83;
    vehicleSensorsInvalid @84;
    locationdTemporaryError @85;
    locationdPermanentError @86;
    paramsdTemporaryError @87;
    paramsdPermanentError @88;
    actuatorsApiUnavailable @89;
    espActive @90;
    personalityChanged @91;
    aeb @92;
    radarTempUnavailable @93;
    steerDisengage @94;
    userBookmark @95;                 # userFlag before mid 2025
    excessiveActuation @96;
    audioFeedback @97;                # retired 2026
    stockLkas @98;
    lateralManeuver @99;
    bigModelLoading @100;
    bigModelReady @101;               # retired
    bigModelFailed @102;
    carNotReady @103;
    userBookmarkNotPaired @104;
  }
}

# 100 Hz: whether the system drives, and what it tells the driver.
struct SelfdriveState @0xb52430dc48f4a83b {
  state @0 :OpenpilotState;
  enabled @1 :Bool;
  active @2 :Bool;
  alertText1 @3 :Text;
  alertText2 @4 :Text;
  alertStatus @5 :AlertStatus;
  alertSize @6 :AlertSize;
  alertType @7 :Text;                 # name of the event and of its kind
  alertSoundRetired @8 :AudibleAlert; # in use until 2026
  engageable @9 :Bool;
  experimentalMode @10 :Bool;         # the model may also drive the speed
  personality @11 :LongitudinalPersonality;
  alertHudVisual @12 :Car.CarControl.HUDControl.VisualAlert;
  alertSound @13 :AudibleAlert;       # since 2026; see @8

  enum OpenpilotState @0xdbe58b96d2d1ac61 {
    disabled @0;
    preEnabled @1;
    enabled @2;
    softDisabling @3;
    overriding @4;
  }

  enum AlertStatus @0xa0d0dcd113193c62 {
    normal @0;
    userPrompt @1;
    critical @2;
  }

  enum AlertSize @0xe98bb99d6e985f64 {
    none @0;
    small @1;
    mid @2;
    full @3;
  }

  # As Car.CarControl.HUDControl.AudibleAlert, and two more.
  enum AudibleAlert {
    none @0;
    engage @1;
    disengage @2;
    refuse @3;
    warningSoft @4;
    warningImmediate @5;
    prompt @6;
    promptRepeat @7;
    promptDistracted @8;
    preAlert @9;
    complete @10;
  }
}

# 100 Hz: what the controllers do. Much of it moved to selfdriveState in late 2024.
struct ControlsState @0x97ff69c53601abf1 {
  vEgo @0 :Float32;                   # @0..@3 retired
  aEgo @1 :Float32;
  vPid @2 :Float32;
  vTargetLead @3 :Float32;
  upAccelCmd @4 :Float32;             # m/s^2: proportional part
  uiAccelCmd @5 :Float32;             # m/s^2: integral part
  yActual @6 :Float32;                # @6..@27 retired
  yDes @7 :Float32;
  upSteer @8 :Float32;
  uiSteer @9 :Float32;
  aTargetMin @10 :Float32;
  aTargetMax @11 :Float32;
  jerkFactor @12 :Float32;
  angleSteers @13 :Float32;           # degrees
  hudLead @14 :Int32;
  cumLagMs @15 :Float32;
  canMonoTime @16 :UInt64;
  radarStateMonoTime @17 :UInt64;
  mdMonoTime @18 :UInt64;
  enabled @19 :Bool;
  steerOverride @20 :Bool;
  canMonoTimes @21 :List(UInt64);
  vCruise @22 :Float32;               # km/h
  rearViewCam @23 :Bool;
  alertText1 @24 :Text;
  alertText2 @25 :Text;
  awarenessStatus @26 :Float32;
  angleModelBias @27 :Float32;
  longitudinalPlanMonoTime @28 :UInt64;   # ns
  steeringAngleDesiredDeg @29 :Float32;   # retired
  longControlState @30 :Car.CarControl.Actuators.LongControlState;
  state @31 :SelfdriveState.OpenpilotState;   # retired
  vEgoRaw @32 :Float32;               # retired
  ufAccelCmd @33 :Float32;            # m/s^2: feed-forward part
  ufSteer @34 :Float32;               # @34..@36 retired
  aTarget @35 :Float32;
  active @36 :Bool;
  curvature @37 :Float32;             # 1/m, driven now, from the steering angle; sign as @61
  alertStatus @38 :SelfdriveState.AlertStatus;   # @38..@49 retired
  alertSize @39 :SelfdriveState.AlertSize;
  gpsPlannerActive @40 :Bool;
  engageable @41 :Bool;
  alertBlinkingRate @42 :Float32;
  driverMonitoringOn @43 :Bool;
  alertType @44 :Text;
  alertSound @45 :Text;
  vCurvature @46 :Float32;
  decelForTurn @47 :Bool;
  startMonoTime @48 :UInt64;
  mapValid @49 :Bool;
  lateralPlanMonoTime @50 :UInt64;    # ns
  forceDecel @51 :Bool;               # the driver does not watch: slow down
  lateralControlState :union {
    indiState @52 :LateralINDIState;  # retired
    pidState @53 :LateralPIDState;
    lqrState @55 :LateralLQRState;    # retired
    angleState @58 :LateralAngleState;
    debugState @59 :LateralDebugState;
    torqueState @60 :LateralTorqueState;
    curvatureState @65 :LateralCurvatureState;
  }
  decelForModel @54 :Bool;            # retired
  alertSound2 @56 :SelfdriveState.AudibleAlert;  # retired
  canErrorCounter @57 :UInt32;        # retired
  desiredCurvature @61 :Float32;      # 1/m, positive turns right; limited in its rate
  desiredCurvatureRate @62 :Float32;  # @62..@64 retired
  vCruiseCluster @63 :Float32;
  experimentalMode @64 :Bool;
  personality @66 :LongitudinalPersonality;      # retired

  struct LateralINDIState {
    active @0 :Bool;
    steeringAngleDeg @1 :Float32;
    steeringRateDeg @2 :Float32;
    steeringAccelDeg @3 :Float32;
    rateSetPoint @4 :Float32;
    accelSetPoint @5 :Float32;
    accelError @6 :Float32;
    delayedOutput @7 :Float32;
    delta @8 :Float32;
    output @9 :Float32;
    saturated @10 :Bool;
    steeringAngleDesiredDeg @11 :Float32;
    steeringRateDesiredDeg @12 :Float32;
  }

  struct LateralPIDState {
    active @0 :Bool;
    steeringAngleDeg @1 :Float32;
    steeringRateDeg @2 :Float32;      # degrees/s
    angleError @3 :Float32;           # degrees
    p @4 :Float32;
    i @5 :Float32;
    f @6 :Float32;
    output @7 :Float32;               # -1..1
    saturated @8 :Bool;
    steeringAngleDesiredDeg @9 :Float32;
  }

  struct LateralTorqueState {
    active @0 :Bool;
    error @1 :Float32;                # m/s^2
    p @2 :Float32;
    i @3 :Float32;
    d @4 :Float32;
    f @5 :Float32;
    output @6 :Float32;               # -1..1
    saturated @7 :Bool;
    errorRate @8 :Float32;
    actualLateralAccel @9 :Float32;   # m/s^2
    desiredLateralAccel @10 :Float32; # m/s^2
    desiredLateralJerk @11 :Float32;  # m/s^3
    version @12 :Int32;
  }

  struct LateralLQRState {
    active @0 :Bool;
    steeringAngleDeg @1 :Float32;
    i @2 :Float32;
    output @3 :Float32;
    lqrOutput @4 :Float32;
    saturated @5 :Bool;
    steeringAngleDesiredDeg @6 :Float32;
  }

  struct LateralAngleState {
    active @0 :Bool;
    steeringAngleDeg @1 :Float32;
    output @2 :Float32;
    saturated @3 :Bool;
    steeringAngleDesiredDeg @4 :Float32;
  }

  struct LateralCurvatureState @0xad9d8095c06f7c61 {
    active @0 :Bool;
    actualCurvature @1 :Float32;      # 1/m
    desiredCurvature @2 :Float32;     # 1/m
    error @3 :Float32;
    p @4 :Float32;
    i @5 :Float32;
    f @6 :Float32;
    output @7 :Float32;
    saturated @8 :Bool;
  }

  struct LateralDebugState {
    active @0 :Bool;
    steeringAngleDeg @1 :Float32;
    output @2 :Float32;
    saturated @3 :Bool;
  }
}

# 20 Hz: how fast to drive over the next 2.5 s.
struct LongitudinalPlan @0xe00b5b3eba12876c {
  lateralValid @0 :Bool;              # @0..@6 retired
  dPoly @1 :List(Float32);
  longitudinalValid @2 :Bool;
  vTarget @3 :Float32;
  aTargetMin @4 :Float32;
  aTargetMax @5 :Float32;
  jerkFactor @6 :Float32;
  hasLead @7 :Bool;
  fcw @8 :Bool;                       # forward collision warning
  modelMonoTime @9 :UInt64;           # ns
  radarStateMonoTime @10 :UInt64;     # @10..@14 retired
  laneWidth @11 :Float32;
  gpsTrajectory @12 :GpsTrajectory;
  events @13 :List(Car.OldOnroadEvent);
  vTargetFuture @14 :Float32;
  longitudinalPlanSource @15 :LongitudinalPlanSource;
  vCruise @16 :Float32;               # retired
  aCruise @17 :Float32;               # retired
  aTarget @18 :Float32;               # m/s^2
  gpsPlannerActive @19 :Bool;         # @19..@28 retired
  vMax @20 :Float32;
  vCurvature @21 :Float32;
  decelForTurn @22 :Bool;
  hasLeftLane @23 :Bool;
  hasRightLane @24 :Bool;
  mapValid @25 :Bool;
  vStart @26 :Float32;
  aStart @27 :Float32;
  radarValid @28 :Bool;
  processingDelay @29 :Float32;       # s
  radarCanError @30 :Bool;            # retired
  commIssue @31 :Bool;                # retired
  accels @32 :List(Float32);          # m/s^2
  speeds @33 :List(Float32);          # m/s
  jerks @34 :List(Float32);           # m/s^3
  solverExecutionTime @35 :Float32;   # s
  personality @36 :LongitudinalPersonality;      # retired
  shouldStop @37 :Bool;
  allowThrottle @38 :Bool;
  allowBrake @39 :Bool;
  accelBoost @40 :Float32;            # m/s^2

  # What limits the speed.
  enum LongitudinalPlanSource {
    cruise @0;
    lead0 @1;
    lead1 @2;
    lead2 @3;
    e2e @4;
  }

  struct GpsTrajectory {
    x @0 :List(Float32);
    y @1 :List(Float32);
  }
}

struct LateralManeuverPlan @0xed12f1c294702e30 {
  desiredCurvature @0 :Float32;       # 1/m, positive turns right
}

# Retired 2023: the lateral plan that was made outside the model.
struct LateralPlan @0xe1e9318e2ae8b51e {
  laneWidth @0 :Float32;              # m
  dPoly @1 :List(Float32);
  cPoly @2 :List(Float32);
  cProb @3 :Float32;
  lPoly @4 :List(Float32);
  lProb @5 :Float32;
  rPoly @6 :List(Float32);
  rProb @7 :Float32;
  steeringAngleDeg @8 :Float32;
  mpcSolutionValid @9 :Bool;
  paramsValid @10 :Bool;
  angleOffsetDeg @11 :Float32;
  modelValid @12 :Bool;
  steeringRateDeg @13 :Float32;
  sensorValid @14 :Bool;
  commIssue @15 :Bool;
  posenetValid @16 :Bool;
  desire @17 :Desire;
  laneChangeState @18 :Log.LaneChangeState;
  laneChangeDirection @19 :Log.LaneChangeDirection;
  dPathPoints @20 :List(Float32);     # m, lateral
  dProb @21 :Float32;
  curvature @22 :Float32;
  curvatureRate @23 :Float32;
  rawCurvature @24 :Float32;
  rawCurvatureRate @25 :Float32;
  psis @26 :List(Float32);            # rad
  curvatures @27 :List(Float32);      # 1/m
  curvatureRates @28 :List(Float32);  # 1/(m s)
  useLaneLines @29 :Bool;
  solverExecutionTime @30 :Float32;   # s
  modelMonoTime @31 :UInt64;          # ns
  solverCost @32 :Float32;
  solverState @33 :SolverState;

  struct SolverState {
    x @0 :List(List(Float32));
    u @1 :List(Float32);
  }
}

# 20 Hz: the two vehicles ahead that matter, from radar and model.
struct RadarState @0x9a185389d6fdd05f {
  warpMatrix @0 :List(Float32);       # @0..@2 retired
  angleOffset @1 :Float32;
  calStatus @2 :Int8;
  leadOne @3 :LeadData;
  leadTwo @4 :LeadData;
  cumLagMs @5 :Float32;               # retired
  mdMonoTime @6 :UInt64;              # ns, of the modelV2 used
  ftMonoTime @7 :UInt64;              # @7..@10 retired
  calCycle @8 :Int32;
  calPerc @9 :Int8;
  canMonoTimes @10 :List(UInt64);
  carStateMonoTime @11 :UInt64;       # ns; retired 2026
  radarErrorsRetired @12 :List(Car.RadarData.OldError);
  radarErrors @13 :Car.RadarData.Error;

  struct LeadData {
    dRel @0 :Float32;                 # m from the front bumper
    yRel @1 :Float32;                 # m, positive to the left
    vRel @2 :Float32;                 # m/s, relative
    aRel @3 :Float32;                 # m/s^2; retired
    vLead @4 :Float32;                # m/s, absolute
    aLead @5 :Float32;                # @5..@7 retired
    dPath @6 :Float32;
    vLat @7 :Float32;
    vLeadK @8 :Float32;               # m/s, filtered
    aLeadK @9 :Float32;               # m/s^2, filtered
    fcw @10 :Bool;                    # retired
    status @11 :Bool;                 # there is one; `present` in 2026
    aLeadTau @12 :Float32;            # s, how fast its acceleration is expected to fade
    modelProb @13 :Float32;           # 0..1
    radar @14 :Bool;                  # seen by the radar too
    radarTrackId @15 :Int32 = -1;
  }
}

# 20 Hz (deviceMotion in 2026): motion of the device. Angles in rad, device frame unless named NED.
struct LivePose @0xc24ca2b57206b44d {
  orientationNED @0 :XYZMeasurement;
  velocityDevice @1 :XYZMeasurement;         # m/s
  accelerationDevice @2 :XYZMeasurement;     # m/s^2
  angularVelocityDevice @3 :XYZMeasurement;  # rad/s
  inputsOK @4 :Bool;
  posenetOK @5 :Bool;
  sensorsOK @6 :Bool;
  debugFilterState @7 :FilterState;
  timestamp @8 :UInt64;               # ns; since 2026

  struct XYZMeasurement {
    x @0 :Float32;
    y @1 :Float32;
    z @2 :Float32;
    xStd @3 :Float32;
    yStd @4 :Float32;
    zStd @5 :Float32;
    valid @6 :Bool;
  }

  struct FilterState {
    value @0 :List(Float64);
    std @1 :List(Float64);
    valid @2 :Bool;
    observations @3 :List(Observation);

    struct Observation {
      kind @0 :Int32;
      value @1 :List(Float32);
      error @2 :List(Float32);
    }
  }
}

# Retired 2024: what livePose was before, with positions.
struct LiveLocationKalman @0xebc5703d1ee7c129 {
  positionECEF @0 :Measurement;              # m
  positionGeodetic @1 :Measurement;          # degrees, degrees, m
  velocityECEF @2 :Measurement;              # m/s
  velocityNED @3 :Measurement;
  velocityDevice @4 :Measurement;
  accelerationDevice @5 :Measurement;        # m/s^2
  orientationECEF @6 :Measurement;           # rad: roll, pitch, yaw of the device
  orientationNED @7 :Measurement;
  angularVelocityDevice @8 :Measurement;     # rad/s
  calibratedOrientationNED @9 :Measurement;
  velocityCalibrated @10 :Measurement;
  accelerationCalibrated @11 :Measurement;
  angularVelocityCalibrated @12 :Measurement;
  gpsWeek @13 :Int32;
  gpsTimeOfWeek @14 :Float64;         # s
  status @15 :Status;
  unixTimestampMillis @16 :Int64;     # ms since 1970
  inputsOK @17 :Bool = true;
  posenetOK @18 :Bool = true;
  gpsOK @19 :Bool = true;
  calibratedOrientationECEF @20 :Measurement;
  sensorsOK @21 :Bool = true;
  deviceStable @22 :Bool = true;
  timeSinceReset @23 :Float64;        # s
  excessiveResets @24 :Bool;
  timeToFirstFix @25 :Float32;        # s
  filterState @26 :Measurement;

  enum Status {
    uninitialized @0;
    uncalibrated @1;
    valid @2;
  }

  struct Measurement {
    value @0 :List(Float64);
    std @1 :List(Float64);
    valid @2 :Bool;
  }
}

# 20 Hz (vehicleParameters in 2026): what the drive taught about the car's steering.
struct LiveParametersData @0xd9058dcb967c2753 {
  valid @0 :Bool;
  gyroBias @1 :Float32;
  angleOffsetDeg @2 :Float32;         # degrees, of the steering wheel
  angleOffsetAverageDeg @3 :Float32;
  stiffnessFactor @4 :Float32;        # of the tires, 1 = as expected
  steerRatio @5 :Float32;
  sensorValid @6 :Bool;
  yawRate @7 :Float32;                # retired
  posenetSpeed @8 :Float32;           # m/s
  posenetValid @9 :Bool;
  angleOffsetFastStd @10 :Float32;
  angleOffsetAverageStd @11 :Float32;
  stiffnessFactorStd @12 :Float32;
  steerRatioStd @13 :Float32;
  roll @14 :Float32;                  # rad, of the road
  filterState @15 :LiveLocationKalman.Measurement;  # retired
  debugFilterState @16 :FilterState;
  angleOffsetValid @17 :Bool = true;
  angleOffsetAverageValid @18 :Bool = true;
  steerRatioValid @19 :Bool = true;
  stiffnessFactorValid @20 :Bool = true;

  struct FilterState {
    value @0 :List(Float64);
    std @1 :List(Float64);
  }
}

# 4 Hz (lateralTorqueParameters in 2026): steering torque to lateral acceleration.
struct LiveTorqueParametersData @0xe61690eb0b091692 {
  liveValid @0 :Bool;                 # `valid` in 2026
  latAccelFactorRaw @1 :Float32;
  latAccelOffsetRaw @2 :Float32;
  frictionCoefficientRaw @3 :Float32;
  latAccelFactorFiltered @4 :Float32;
  latAccelOffsetFiltered @5 :Float32;
  frictionCoefficientFiltered @6 :Float32;
  totalBucketPoints @7 :Float32;
  decay @8 :Float32;
  maxResets @9 :Float32;
  points @10 :List(List(Float32));
  version @11 :Int32;
  useParams @12 :Bool;
  calPerc @13 :Int8;                  # %
}

struct DriverAssistance @0x9b669f73a9c1cfbc {
  leftLaneDeparture @0 :Bool;
  rightLaneDeparture @1 :Bool;
}

# Retired 2026: what a navigation service said.
struct NavInstruction @0xc18216b27f8602af {
  maneuverPrimaryText @0 :Text;
  maneuverSecondaryText @1 :Text;
  maneuverDistance @2 :Float32;       # m
  maneuverType @3 :Text;
  maneuverModifier @4 :Text;
  distanceRemaining @5 :Float32;      # m
  timeRemaining @6 :Float32;          # s
  timeRemainingTypical @7 :Float32;   # s
  lanes @8 :List(Lane);
  showFull @9 :Bool;
  speedLimit @10 :Float32;            # m/s
  speedLimitSign @11 :SpeedLimitSign;
  allManeuvers @12 :List(Maneuver);

  struct Lane {
    directions @0 :List(Direction);
    active @1 :Bool;
    activeDirection @2 :Direction;
  }

  enum Direction {
    none @0;
    left @1;
    right @2;
    straight @3;
    slightLeft @4;
    slightRight @5;
  }

  enum SpeedLimitSign {
    mutcd @0;
    vienna @1;
  }

  struct Maneuver {
    distance @0 :Float32;             # m
    type @1 :Text;
    modifier @2 :Text;
  }
}

struct NavRoute @0xa61452f6440d97d3 {
  coordinates @0 :List(Coordinate);

  struct Coordinate {
    latitude @0 :Float32;             # degrees
    longitude @1 :Float32;
  }
}

struct MapRenderState @0xa158dd2a4cfaa81b {
  locationMonoTime @0 :UInt64;        # ns
  renderTime @1 :Float32;             # s
  frameId @2 :UInt32;
}
