# Messages about the vehicle: what `card` publishes and the daemon reads.
#
# Layout rule: the wire position of a field follows from the ordinals and types of ALL fields with
# lower ordinals, so every ordinal is declared, in order, also those that nobody reads any more.
# Names may change; ordinals and types may not. What has been out of use for years is `Opaque`: a
# pointer takes one word whatever it points to.
#
# Units: m, m/s, m/s^2, rad unless the name says otherwise (`Deg`, `Ms`).

@0x8e2af1e708af8b8d;

struct Opaque {}

# 100 Hz. Car frame: x forward, y left, z up; steering and yaw positive to the left.
struct CarState {
  errors @0 :List(UInt16);            # retired
  vEgo @1 :Float32;                   # m/s, filtered
  wheelSpeeds @2 :WheelSpeeds;
  gas @3 :Float32;                    # retired
  gasPressed @4 :Bool;
  brake @5 :Float32;                  # retired
  brakePressed @6 :Bool;
  steeringAngleDeg @7 :Float32;       # degrees at the steering wheel
  steeringTorque @8 :Float32;         # driver torque, units of the car's own bus
  steeringPressed @9 :Bool;           # the driver is turning the wheel
  cruiseState @10 :CruiseState;
  buttonEvents @11 :List(ButtonEvent);
  canMonoTimes @12 :List(UInt64);     # retired
  events @13 :List(OldOnroadEvent);   # retired
  gearShifter @14 :GearShifter;
  steeringRateDeg @15 :Float32;       # degrees/s
  aEgo @16 :Float32;                  # m/s^2
  vEgoRaw @17 :Float32;               # m/s, unfiltered wheel speed
  standstill @18 :Bool;
  brakeLights @19 :Bool;              # retired
  leftBlinker @20 :Bool;
  rightBlinker @21 :Bool;
  yawRate @22 :Float32;               # rad/s
  genericToggle @23 :Bool;
  doorOpen @24 :Bool;
  seatbeltUnlatched @25 :Bool;
  canValid @26 :Bool;                 # counters and checksums of the car's bus are right
  steeringTorqueEps @27 :Float32;
  clutchPressed @28 :Bool;            # retired
  steeringRateLimited @29 :Bool;      # retired
  stockAeb @30 :Bool;
  stockFcw @31 :Bool;
  espDisabled @32 :Bool;
  leftBlindspot @33 :Bool;            # something is beside the car on the left
  rightBlindspot @34 :Bool;
  steerFaultTemporary @35 :Bool;
  steerFaultPermanent @36 :Bool;
  steeringAngleOffsetDeg @37 :Float32;
  brakeHoldActive @38 :Bool;
  parkingBrake @39 :Bool;
  canTimeout @40 :Bool;
  fuelGauge @41 :Float32;             # 0..1
  accFaulted @42 :Bool;
  charging @43 :Bool;
  vEgoCluster @44 :Float32;           # m/s, as the instrument cluster shows it
  regenBraking @45 :Bool;
  engineRpm @46 :Float32;             # retired
  carFaultedNonCritical @47 :Bool;
  canErrorCounter @48 :UInt32;
  canRcvTimeout @49 :Bool;            # retired
  cumLagMs @50 :Float32;
  espActive @51 :Bool;
  vehicleSensorsInvalid @52 :Bool;
  vCruise @53 :Float32;
  vCruiseCluster @54 :Float32;
  invalidLkasSetting @55 :Bool;
  lowSpeedAlert @56 :Bool;
  buttonEnable @57 :Bool;
  steeringDisengage @58 :Bool;
  stockLkas @59 :Bool;
  blockPcmEnable @60 :Bool;
  carNotReady @61 :Bool;

  struct WheelSpeeds {                # m/s
    fl @0 :Float32;
    fr @1 :Float32;
    rl @2 :Float32;
    rr @3 :Float32;
  }

  struct CruiseState {
    enabled @0 :Bool;
    speed @1 :Float32;                # m/s
    available @2 :Bool;
    speedOffset @3 :Float32;          # retired
    standstill @4 :Bool;
    nonAdaptive @5 :Bool;
    speedCluster @6 :Float32;         # m/s
  }

  struct ButtonEvent {
    pressed @0 :Bool;
    type @1 :Type;

    enum Type {
      unknown @0;
      leftBlinker @1;
      rightBlinker @2;
      accelCruise @3;
      decelCruise @4;
      cancel @5;
      lkas @6;                        # altButton1 in old logs
      altButton2 @7;
      mainCruise @8;                  # altButton3
      setCruise @9;
      resumeCruise @10;
      gapAdjustCruise @11;
    }
  }

  enum GearShifter {
    unknown @0;
    park @1;
    drive @2;
    neutral @3;
    reverse @4;
    sport @5;
    low @6;
    brake @7;
    eco @8;
    manumatic @9;
  }
}

# 100 Hz: what the controllers ask of the car.
struct CarControl {
  enabled @0 :Bool;
  gas @1 :Float32;                    # retired
  brake @2 :Float32;                  # retired
  steeringTorque @3 :Float32;         # retired
  cruiseControl @4 :CruiseControl;
  hudControl @5 :HUDControl;
  actuators @6 :Actuators;
  active @7 :Bool;                    # retired
  roll @8 :Float32;                   # retired
  pitch @9 :Float32;                  # retired
  actuatorsOutput @10 :Actuators;     # retired
  latActive @11 :Bool;                # lateral control is on: lane changes are possible
  longActive @12 :Bool;
  orientationNED @13 :List(Float32);  # rad, north-east-down
  angularVelocity @14 :List(Float32); # rad/s, device frame
  leftBlinker @15 :Bool;
  rightBlinker @16 :Bool;
  currentCurvature @17 :Float32;      # 1/m
  driverMonitoringEscalation @18 :Bool;

  struct Actuators {
    gas @0 :Float32;
    brake @1 :Float32;
    torque @2 :Float32;               # -1..1
    steeringAngleDeg @3 :Float32;
    accel @4 :Float32;                # m/s^2
    longControlState @5 :LongControlState;
    speed @6 :Float32;                # m/s
    curvature @7 :Float32;            # 1/m, positive turns right, other than the angle
    torqueOutputCan @8 :Float32;      # units of the car's own bus

    enum LongControlState @0xe40f3a917d908282 {
      off @0;
      pid @1;
      stopping @2;
      starting @3;
    }
  }

  struct CruiseControl {
    cancel @0 :Bool;
    resume @1 :Bool;
    speedOverride @2 :Float32;        # @2 and @3 retired
    accelOverride @3 :Float32;
    override @4 :Bool;
  }

  # What the instrument cluster is to show.
  struct HUDControl {
    speedVisible @0 :Bool;
    setSpeed @1 :Float32;             # m/s
    lanesVisible @2 :Bool;
    leadVisible @3 :Bool;
    visualAlert @4 :VisualAlert;
    audibleAlert @5 :AudibleAlert;
    rightLaneVisible @6 :Bool;
    leftLaneVisible @7 :Bool;
    rightLaneDepart @8 :Bool;
    leftLaneDepart @9 :Bool;
    leadDistanceBars @10 :Int8;       # 1 close .. 3 far

    enum VisualAlert {
      none @0;
      fcw @1;
      steerRequired @2;
      brakePressed @3;
      wrongGear @4;
      seatbeltUnbuckled @5;
      speedTooHigh @6;
      ldw @7;
    }

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
    }
  }
}

# 100 Hz: what was sent to the car after its limits of rate.
struct CarOutput {
  actuatorsOutput @0 :CarControl.Actuators;
}

# liveTracks (radarTracks in 2026), 20 Hz: what the car's radar sees.
struct RadarData @0x888ad6581cf0aacb {
  errorsRetired @0 :List(OldError);   # retired
  points @1 :List(RadarPoint);
  canMonoTimes @2 :List(UInt64);      # retired
  errors @3 :Error;

  struct Error {
    canError @0 :Bool;
    radarFault @1 :Bool;
    wrongConfig @2 :Bool;
    radarUnavailableTemporary @3 :Bool;
  }

  struct RadarPoint {
    trackId @0 :UInt64;
    dRel @1 :Float32;                 # m from the front bumper
    yRel @2 :Float32;                 # m, positive to the left
    vRel @3 :Float32;                 # m/s
    aRel @4 :Float32;                 # m/s^2; @4..@6 retired 2026
    yvRel @5 :Float32;                # m/s
    measured @6 :Bool;
  }

  enum OldError {
    canError @0;
    fault @1;
    wrongConfig @2;
  }
}

# What onroadEvents was until late 2024: the same flags, other numbers of the names.
struct OldOnroadEvent @0x9b1657f34caf3ad3 {
  name @0 :EventName;
  enable @1 :Bool;
  noEntry @2 :Bool;
  warning @3 :Bool;
  userDisable @4 :Bool;
  softDisable @5 :Bool;
  immediateDisable @6 :Bool;
  preEnable @7 :Bool;
  permanent @8 :Bool;
  overrideLongitudinal @9 :Bool;
  overrideLateral @10 :Bool;

  enum EventName @0xbaa8c5d505f727de {
    canError @0;
    steerUnavailable @1;
    brakeUnavailable @2;
    gasUnavailable @3;
    wrongGear @4;
    doorOpen @5;
    seatbeltNotLatched @6;
    espDisabled @7;
    wrongCarMode @8;
    steerTempUnavailable @9;
    reverseGear @10;
    buttonCancel @11;
    buttonEnable @12;
    pedalPressed @13;
    cruiseDisabled @14;
    radarCanError @15;
    dataNeeded @16;
    speedTooLow @17;
    outOfSpace @18;
    overheat @19;
    calibrationIncomplete @20;
    calibrationInvalid @21;
    controlsMismatch @22;
    pcmEnable @23;
    pcmDisable @24;
    noTarget @25;
    radarFault @26;
    modelCommIssue @27;
    brakeHold @28;
    parkBrake @29;
    manualRestart @30;
    lowSpeedLockout @31;
    plannerError @32;
    ipasOverride @33;
    joystickDebug @34;
    steerTempUnavailableSilent @35;
    resumeRequired @36;
    preDriverDistracted @37;
    promptDriverDistracted @38;
    driverDistracted @39;
    geofence @40;
    driverMonitorOn @41;
    driverMonitorOff @42;
    preDriverUnresponsive @43;
    promptDriverUnresponsive @44;
    driverUnresponsive @45;
    belowSteerSpeed @46;
    calibrationProgress @47;
    lowBattery @48;
    invalidGiraffeHonda @49;
    paramsdTemporaryError @50;
    accFaulted @51;
    sensorDataInvalid @52;
    commIssue @53;
    tooDistracted @54;
    posenetInvalid @55;
    soundsUnavailable @56;
    preLaneChangeLeft @57;
    preLaneChangeRight @58;
    laneChange @59;
    invalidGiraffeToyota @60;
    internetConnectivityNeeded @61;
    communityFeatureDisallowed @62;
    lowMemory @63;
    stockAeb @64;
    ldw @65;
    carUnrecognized @66;
    radarCommIssue @67;
    driverMonitorLowAcc @68;
    invalidLkasSetting @69;
    speedTooHigh @70;
    laneChangeBlocked @71;
    relayMalfunction @72;
    preEnableStandstill @73;
    stockFcw @74;
    startup @75;
    startupNoCar @76;
    startupNoControl @77;
    startupMaster @78;
    fcw @79;
    steerSaturated @80;
    whitePandaUnsupported @81;
    startupOneplus @82;
    commIssueWarning @83;
    belowEngageSpeed @84;
    noGps @85;
    focusRecoverActive @86;
    wrongCruiseMode @87;
    neosUpdateRequired @88;
    modeldLagging @89;
    deviceFalling @90;
    fanMalfunction @91;
    cameraMalfunction @92;
    modelLagWarning @93;
    gpsMalfunction @94;
    processNotRunning @95;
    dashcamMode @96;
    startupFuzzyFingerprint @97;
    selfdriveInitializing @98;
    usbError @99;
    roadCameraError @100;
    driverCameraError @101;
    wideRoadCameraError @102;
    locationdTemporaryError @103;
    startupNoFw @104;
    highCpuUsage @105;
    cruiseMismatch @106;
    lkasDisabled @107;
    gasPressedOverride @108;
    commIssueAvgFreq @109;
    cameraFrameRate @110;
    canBusMissing @111;
    selfdrivedLagging @112;
    resumeBlocked @113;
    steerOverride @114;
    steerTimeLimit @115;
    vehicleSensorsInvalid @116;
    calibrationRecalibrating @117;
    locationdPermanentError @118;
    paramsdPermanentError @119;
    actuatorsApiUnavailable @120;
    espActive @121;
    personalityChanged @122;
    aeb @123;
    longitudinalManeuver @124;
    startupNoSecOcKey @125;
  }
}

# Once per drive, after the car was recognised.
struct CarParams {
  brand @0 :Text;                     # carName before 2025
  carFingerprint @1 :Text;
  enableGasInterceptor @2 :Bool;      # retired
  pcmCruise @3 :Bool;
  enableCamera @4 :Bool;              # retired
  enableDsu @5 :Bool;                 # retired
  enableApgs @6 :Bool;                # retired
  minEnableSpeed @7 :Float32;         # m/s
  minSteerSpeed @8 :Float32;          # m/s
  safetyModel @9 :SafetyModel;        # retired
  safetyParam @10 :Int16;             # retired
  steerMaxBP @11 :List(Float32);      # @11..@16 retired
  steerMaxV @12 :List(Float32);
  gasMaxBP @13 :List(Float32);
  gasMaxV @14 :List(Float32);
  brakeMaxBP @15 :List(Float32);
  brakeMaxV @16 :List(Float32);
  mass @17 :Float32;                  # kg
  wheelbase @18 :Float32;             # m
  centerToFront @19 :Float32;         # m
  steerRatio @20 :Float32;
  steerRatioRear @21 :Float32;
  rotationalInertia @22 :Float32;     # kg m^2
  tireStiffnessFront @23 :Float32;    # N/rad
  tireStiffnessRear @24 :Float32;     # N/rad
  longitudinalTuning @25 :LongitudinalPIDTuning;
  lateralTuning :union {
    pid @26 :LateralPIDTuning;
    indi @27 :Opaque;                 # retired
    lqr @40 :Opaque;                  # retired
    torque @67 :LateralTorqueTuning;
  }
  steerLimitAlert @28 :Bool;          # retired
  vEgoStopping @29 :Float32;          # retired
  directAccelControl @30 :Bool;       # retired
  stoppingControl @31 :Bool;          # retired
  startAccel @32 :Float32;            # retired
  steerRateCost @33 :Float32;         # retired
  steerControlType @34 :SteerControlType;
  radarUnavailable @35 :Bool;
  steerActuatorDelay @36 :Float32;    # s
  openpilotLongitudinalControl @37 :Bool;
  carVin @38 :Text;
  isPandaBlack @39 :Bool;             # retired
  dashcamOnly @41 :Bool;
  safetyModelPassive @42 :SafetyModel;  # retired
  transmissionType @43 :TransmissionType;
  carFw @44 :List(CarFw);
  radarTimeStep @45 :Float32 = 0.05;  # retired
  communityFeature @46 :Bool;         # retired
  steerLimitTimer @47 :Float32;       # s
  lateralParams @48 :LateralParams;
  fingerprintSource @49 :FingerprintSource;
  networkLocation @50 :NetworkLocation;
  minSpeedCan @51 :Float32;           # retired
  stoppingDecelRate @52 :Float32;     # retired
  startingAccelRate @53 :Float32;     # retired
  maxSteeringAngleDeg @54 :Float32;   # retired
  fuzzyFingerprint @55 :Bool;
  enableBsm @56 :Bool;                # the car has blind spot sensors
  hasStockCamera @57 :Bool;           # retired
  longitudinalActuatorDelay @58 :Float32;            # s
  vEgoStarting @59 :Float32;          # retired
  stopAccel @60 :Float32;             # m/s^2
  longitudinalActuatorDelayLowerBound @61 :Float32;  # retired
  safetyConfigs @62 :List(SafetyConfig);
  wheelSpeedFactor @63 :Float32;
  flags @64 :UInt32;
  alternativeExperience @65 :Int16;
  notCar @66 :Bool;
  maxLateralAccel @68 :Float32;       # m/s^2
  autoResumeSng @69 :Bool;
  startingState @70 :Bool;            # retired
  alphaLongitudinalAvailable @71 :Bool;
  tireStiffnessFactor @72 :Float32;
  passive @73 :Bool;
  radarDelay @74 :Float32;            # s
  secOcRequired @75 :Bool;
  secOcKeyAvailable @76 :Bool;
  steerAtStandstill @77 :Bool;

  struct SafetyConfig {
    safetyModel @0 :SafetyModel;
    safetyParamRetired @1 :Int16;     # retired
    safetyParam2 @2 :UInt32;          # retired
    safetyParam @3 :UInt16;
  }

  struct LateralParams {
    torqueBP @0 :List(Int32);
    torqueV @1 :List(Int32);
  }

  # BP: the speeds (m/s) at which the gains V are given.
  struct LateralPIDTuning {
    kpBP @0 :List(Float32);
    kpV @1 :List(Float32);
    kiBP @2 :List(Float32);
    kiV @3 :List(Float32);
    kf @4 :Float32;
  }

  struct LateralTorqueTuning {
    useSteeringAngle @0 :Bool;        # @0..@2 and @4 retired
    kp @1 :Float32;
    ki @2 :Float32;
    friction @3 :Float32;             # m/s^2
    kf @4 :Float32;
    steeringAngleDeadzoneDeg @5 :Float32;
    latAccelFactor @6 :Float32;       # m/s^2 at full torque
    latAccelOffset @7 :Float32;       # m/s^2
    kd @8 :Float32;                   # retired
  }

  struct LongitudinalPIDTuning {
    kpBP @0 :List(Float32);
    kpV @1 :List(Float32);
    kiBP @2 :List(Float32);
    kiV @3 :List(Float32);
    deadzoneBP @4 :List(Float32);     # @4..@6 retired
    deadzoneV @5 :List(Float32);
    kf @6 :Float32;
  }

  enum SafetyModel {
    silent @0;
    hondaNidec @1;
    toyota @2;
    elm327 @3;
    gm @4;
    hondaBoschGiraffe @5;
    ford @6;
    cadillac @7;
    hyundai @8;
    chrysler @9;
    tesla @10;
    subaru @11;
    gmPassive @12;
    mazda @13;
    nissan @14;
    volkswagen @15;
    toyotaIpas @16;
    allOutput @17;
    gmAscm @18;
    noOutput @19;
    hondaBosch @20;
    volkswagenPq @21;
    subaruPreglobal @22;
    hyundaiLegacy @23;
    hyundaiCommunity @24;
    volkswagenMlb @25;
    hongqi @26;
    body @27;
    hyundaiCanfd @28;
    volkswagenMqbEvo @29;
    chryslerCusw @30;
    psa @31;
    fcaGiorgio @32;
    rivian @33;
    volkswagenMeb @34;
    byd @35;                          # mg in some forks
    volvo @36;
    bmw @37;
    mg @38;
  }

  enum SteerControlType {
    torque @0;
    angle @1;
    curvature @2;
  }

  enum TransmissionType {
    unknown @0;
    automatic @1;
    manual @2;
    direct @3;
    cvt @4;
  }

  struct CarFw {
    ecu @0 :Ecu;
    fwVersion @1 :Data;
    address @2 :UInt32;
    subAddress @3 :UInt8;
    responseAddress @4 :UInt32;
    request @5 :List(Data);
    brand @6 :Text;
    bus @7 :UInt8;
    logging @8 :Bool;
    obdMultiplexing @9 :Bool;
  }

  enum Ecu {
    eps @0;
    abs @1;
    fwdRadar @2;
    fwdCamera @3;
    engine @4;
    unknown @5;
    dsu @6;
    parkingAdas @7;
    transmission @8;
    srs @9;
    gateway @10;
    hud @11;
    combinationMeter @12;
    vsa @13;
    programmedFuelInjection @14;
    electricBrakeBooster @15;
    shiftByWire @16;
    debug @17;
    hybrid @18;
    adas @19;
    hvac @20;
    cornerRadar @21;
    epb @22;
    telematics @23;
    body @24;
  }

  enum FingerprintSource {
    can @0;
    fw @1;
    fixed @2;
  }

  enum NetworkLocation {
    fwdCamera @0;
    gateway @1;
  }
}
